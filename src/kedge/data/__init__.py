"""Labelled datasets, their split among clients, and what each client holds."""
