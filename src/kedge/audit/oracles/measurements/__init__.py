"""Comparisons of measurements, costs and the protocol, which belong to no single method."""
