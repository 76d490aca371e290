"""Loaders of published datasets, one file for each family."""
