"""References that a method must match: other methods, objectives, closed forms and plain PyTorch."""
