"""The ways a run can fail, by whose affair it is: the request, the data, the training or the checkpoint."""

import difflib
from collections.abc import Iterable


class RequestError(ValueError):
    """The request or configuration is wrong."""


class DataError(ValueError):
    """Data are missing or damaged."""


class Diverged(RuntimeError):
    """Training became non-finite."""


class CheckpointError(RuntimeError):
    """A checkpoint is missing, damaged or of another run."""


def nearest(name: str, allowed: Iterable[str]) -> str:
    """A sentence to append to a message about an unknown name: the closest allowed one, or nothing."""
    close = difflib.get_close_matches(name, list(allowed), n=1)
    return f" Did you mean '{close[0]}'?" if close else ""
