"""Rules that end a stage."""
