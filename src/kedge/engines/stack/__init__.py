"""Clients trained as rows of one stack: start of a round, batches, programs, backend."""
