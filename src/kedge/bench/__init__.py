"""Benchmarks: samples per second on this machine, each with the numbers to compare it with."""
