"""Published numbers and closed forms, computed by the real code."""
