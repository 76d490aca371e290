"""Labeled datasets, how their samples are split among clients, and the batches of a round."""
