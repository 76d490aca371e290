"""Which checks each method takes."""
