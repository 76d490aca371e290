"""Other frameworks, timed on the same work."""
