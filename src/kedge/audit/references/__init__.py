"""Other methods, written-out objectives, closed forms and plain PyTorch, which a method must match."""
