"""Samples per second on this machine, always beside the plain loop and central training of the same run."""
