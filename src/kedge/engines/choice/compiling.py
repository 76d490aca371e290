"""Errors for a network that cannot be compiled or captured; they name an engine that can run it."""

from collections.abc import Iterator
from contextlib import contextmanager

from kedge.core.errors import CheckpointError, DataError, Diverged, RequestError
from kedge.engines.choice.unstackable import NotCompiled, unstackable
from kedge.engines.out_of_memory import ran_out_of_memory
from kedge.nn.naming import error_text

KEDGE_ERRORS = (RequestError, DataError, Diverged, CheckpointError)


@contextmanager
def explain_capture_errors() -> Iterator[None]:
    """In this context, errors of compiling and capturing become errors that name an engine that works."""
    try:
        yield
    except KEDGE_ERRORS:
        raise
    except Exception as error:
        if ran_out_of_memory(error):
            raise
        raise NotCompiled(str(unstackable(error) or capture_error_text(error))) from error


def capture_error_text(error: Exception) -> str:
    """The message for an error of the compiler or the capture that `unstackable` does not recognize."""
    return (
        f"engine.name = 'captured' cannot compile and capture the network: {error_text(error)}. "
        "engine.name = 'stacked' with engine.compile = 'off' can run it, or 'sequential'."
    )


def compile_failure(error: BaseException) -> str | None:
    """The message of `error` if a network cannot be compiled, captured or stacked; else None."""
    if isinstance(error, NotCompiled):
        return str(error)
    explained = unstackable(error)
    return str(explained) if explained else None
