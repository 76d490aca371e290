"""Comparisons of methods with the specification's numbers and with closed forms."""
