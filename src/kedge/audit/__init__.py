"""The audit: every method against published numbers, closed forms, other methods and plain PyTorch."""
