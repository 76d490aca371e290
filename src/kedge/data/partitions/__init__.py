"""Partitions: rules that split a dataset among clients."""
