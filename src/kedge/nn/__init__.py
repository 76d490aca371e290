"""Networks as pure functions: layers that draw from a key, know padding, and stack well."""
