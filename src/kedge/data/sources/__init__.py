"""One file for each family of datasets."""
