"""The checks of every method, as tables."""
