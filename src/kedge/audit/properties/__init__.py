"""Properties that any method must have."""
