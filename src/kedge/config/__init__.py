"""From TOML or Python arguments to one task."""
