"""Exit codes of the commands, and errors as messages.

Exit codes: 0 done · 1 the work failed · 2 the request is wrong · 3 data are missing or damaged · 130
interrupted.
"""

import functools
import os
import sys
import traceback
from collections.abc import Callable
from typing import Any

import typer

from kedge.cli.output import print_message
from kedge.core.errors import CheckpointError, DataError, Diverged, RequestError

EXIT_CODES: tuple[tuple[type[BaseException], int], ...] = (
    (RequestError, 2),
    (DataError, 3),
    (Diverged, 1),
    (CheckpointError, 1),
    (OSError, 1),
    (KeyboardInterrupt, 130),
)


def exit_code(error: BaseException) -> int | None:
    """Exit code for an error, or None for an error that no user causes."""
    return next((code for kind, code in EXIT_CODES if isinstance(error, kind)), None)


def report_errors(command: Callable[..., None]) -> Callable[..., None]:
    """Decorate a command: print an error as one message on standard error, and exit with its code."""

    @functools.wraps(command)
    def wrapper(*args: Any, **kwargs: Any) -> None:
        try:
            command(*args, **kwargs)
            sys.stdout.flush()
        except BrokenPipeError:  # the reader of the output has closed it, as in kedge list --json | head
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            raise typer.Exit(1) from None
        except tuple(kind for kind, _ in EXIT_CODES) as error:
            if kwargs.get("debug"):
                traceback.print_exc()
            interrupted = isinstance(error, KeyboardInterrupt)
            print_message(str(error) or "interrupted" if interrupted else f"error: {error}")
            raise typer.Exit(exit_code(error) or 1) from None

    return wrapper
