"""Download archives into the cache folder, check them, and keep what was decoded."""
