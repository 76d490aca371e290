"""Several runs at once: which runs can share a pack, how many fit into memory, and their thread."""
