"""The papers' tables: printed numbers, runs that measure them again, and the comparison of both."""
