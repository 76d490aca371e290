"""Networks as pure functions: layers that draw from a key, ignore padding, and are fast in a stack."""
