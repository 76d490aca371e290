"""The engine that spreads the clients of a round over worker processes of a Ray cluster (extra `ray`)."""
