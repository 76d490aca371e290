"""Errors for a network that cannot be compiled or captured; they name an engine that can run it."""

from collections.abc import Iterator
from contextlib import contextmanager

from kedge.core.errors import CheckpointError, DataError, Diverged, RequestError
from kedge.core.naming import explained
from kedge.engines.engine import ran_out
from kedge.engines.unstackable import NotCompiled, unstackable

OURS = (RequestError, DataError, Diverged, CheckpointError)


@contextmanager
def capturing() -> Iterator[None]:
    """Compile and capture in this context: a failure becomes an error that names an engine that works."""
    try:
        yield
    except OURS:
        raise
    except Exception as error:
        if ran_out(error):
            raise
        raise NotCompiled(str(unstackable(error) or uncaptured(error))) from error


def uncaptured(error: Exception) -> str:
    """The message for an error of the compiler or the capture that `unstackable` does not know."""
    return (
        f"engine.name = 'captured' cannot compile and capture the network: {explained(error)}. "
        "engine.name = 'stacked' with engine.compile = 'off' can run it, or 'sequential'."
    )


def not_compiled(error: BaseException) -> str | None:
    """The reason if `error` says that a network cannot be compiled, captured or stacked; else None."""
    if isinstance(error, NotCompiled):
        return str(error)
    known = unstackable(error)
    return str(known) if known else None
