"""Exceptions by cause: the request, the data, the training or the checkpoint."""

import difflib
from collections.abc import Iterable


class RequestError(ValueError):
    """The request or configuration is wrong."""


class DataError(ValueError):
    """Data are missing or damaged."""


class Diverged(RuntimeError):
    """Training became non-finite."""


class CheckpointError(RuntimeError):
    """A checkpoint is missing, damaged or from another run."""


def nearest(name: str, allowed: Iterable[str]) -> str:
    """A sentence with the closest allowed name, to append to a message about an unknown one; or ''."""
    close = difflib.get_close_matches(name, list(allowed), n=1)
    return f" Did you mean '{close[0]}'?" if close else ""
