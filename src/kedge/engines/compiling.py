"""Where a network's program cannot be compiled or captured: an error that names another engine."""

from collections.abc import Iterator
from contextlib import contextmanager

from kedge.core.errors import CheckpointError, DataError, Diverged, RequestError
from kedge.core.naming import explained
from kedge.engines.engine import ran_out
from kedge.engines.unstackable import NotCompiled, unstackable

OURS = (RequestError, DataError, Diverged, CheckpointError)


@contextmanager
def capturing() -> Iterator[None]:
    """Name an engine that can run the network, if what is compiled and captured here fails."""
    try:
        yield
    except OURS:
        raise
    except Exception as error:
        if ran_out(error):
            raise
        raise NotCompiled(str(unstackable(error) or uncaptured(error))) from error


def uncaptured(error: Exception) -> str:
    """What to tell of an error that says nothing of the engine."""
    return (
        f"engine.name = 'captured' cannot compile and capture the network: {explained(error)}. "
        "engine.name = 'stacked' with engine.compile = 'off' can run it, or 'sequential'."
    )


def not_compiled(error: BaseException) -> str | None:
    """Why a program could not be made, if that is what this error says."""
    if isinstance(error, NotCompiled):
        return str(error)
    known = unstackable(error)
    return str(known) if known else None
