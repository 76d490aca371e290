"""Split a dataset among clients."""
