"""Client-level differential privacy: clipped deltas, noise on their sum, and the accountant of ε."""
