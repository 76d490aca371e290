"""Other frameworks on the same work."""
