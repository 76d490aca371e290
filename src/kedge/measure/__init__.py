"""Measurements of a run: evaluation, drift, features, cost, and FedBug's linear theory."""
