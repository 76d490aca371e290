"""Several runs trained as one stack."""
