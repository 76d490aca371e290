"""A published table beside its measurements: terminal, Markdown, JSON."""
