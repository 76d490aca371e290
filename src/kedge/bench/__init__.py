"""Benchmarks: samples per second of kedge on this machine, beside plain PyTorch and other frameworks."""
