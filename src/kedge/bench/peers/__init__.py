"""Other frameworks that do the same work."""
