"""FedBug's linear laboratory."""
