"""Errors for a network that cannot be compiled or captured; they name an engine that can run it."""

from collections.abc import Iterator
from contextlib import contextmanager

from kedge.core.errors import CheckpointError, DataError, Diverged, RequestError
from kedge.engines.choice.unstackable import NotCompiled, unstackable
from kedge.engines.out_of_memory import ran_out_of_memory
from kedge.nn.naming import error_text

OURS = (RequestError, DataError, Diverged, CheckpointError)


@contextmanager
def explain_capture_errors() -> Iterator[None]:
    """Compile and capture in this context: a failure becomes an error that names an engine that works."""
    try:
        yield
    except OURS:
        raise
    except Exception as error:
        if ran_out_of_memory(error):
            raise
        raise NotCompiled(str(unstackable(error) or capture_error_text(error))) from error


def capture_error_text(error: Exception) -> str:
    """The message for an error of the compiler or the capture that `unstackable` does not know."""
    return (
        f"engine.name = 'captured' cannot compile and capture the network: {error_text(error)}. "
        "engine.name = 'stacked' with engine.compile = 'off' can run it, or 'sequential'."
    )


def compile_failure(error: BaseException) -> str | None:
    """The reason if `error` says that a network cannot be compiled, captured or stacked; else None."""
    if isinstance(error, NotCompiled):
        return str(error)
    known = unstackable(error)
    return str(known) if known else None
