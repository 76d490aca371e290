"""The papers' tables: published numbers, runs that measure them again, and both side by side."""
