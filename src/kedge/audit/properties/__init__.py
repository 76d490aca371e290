"""Properties that every method must have."""
