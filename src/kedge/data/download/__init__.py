"""Download archives, check them, read the files inside and cache the decoded arrays."""
