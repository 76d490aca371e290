"""HTML pages that need no network."""
