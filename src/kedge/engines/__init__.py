"""Engines: run the kernel for the clients of a round."""
