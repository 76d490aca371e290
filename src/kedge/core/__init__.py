"""The mathematics; knows torch, not where it runs."""
