"""What the commands share: options, exit codes, output.

Exit codes: 0 done · 1 the work failed · 2 the request is wrong · 3 the data are missing or damaged · 130
interrupted.
"""

import functools
import json
import os
import sys
import traceback
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from kedge.core.errors import CheckpointError, DataError, Diverged, RequestError
from kedge.report.plots.png import require_matplotlib

Json = Annotated[bool, typer.Option("--json", help="Print the result as one JSON document and nothing else.")]
Debug = Annotated[bool, typer.Option("--debug", help="Show a traceback with an error.")]

CODES: tuple[tuple[type[BaseException], int], ...] = (
    (RequestError, 2),
    (DataError, 3),
    (Diverged, 1),
    (CheckpointError, 1),
    (OSError, 1),
    (KeyboardInterrupt, 130),
)


def guarded(command: Callable[..., None]) -> Callable[..., None]:
    """The command with its errors as one message on standard error and the right exit code."""

    @functools.wraps(command)
    def wrapper(*args: Any, **kwargs: Any) -> None:
        try:
            command(*args, **kwargs)
            sys.stdout.flush()
        except BrokenPipeError:  # who reads the output has enough of it, as in kedge list --json | head
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            raise typer.Exit(1) from None
        except tuple(kind for kind, _ in CODES) as error:
            if kwargs.get("debug"):
                traceback.print_exc()
            say(
                f"error: {error}" if not isinstance(error, KeyboardInterrupt) else str(error) or "interrupted"
            )
            raise typer.Exit(next(code for kind, code in CODES if isinstance(error, kind))) from None

    return wrapper


def check_target(target: float | None) -> None:
    """An accuracy is a share."""
    if target is not None and not 0 < target <= 1:
        raise RequestError(f"--target {target}: need a share between 0 and 1; for 90 % write 0.9.")


def check_png(option: str, path: Path) -> None:
    """Refuse before any work a picture that could not be written."""
    if path.suffix != ".png" or path.is_dir() or not path.parent.is_dir():
        raise RequestError(f"{option} {path}: need a file's name that ends in .png, in a folder that exists.")
    require_matplotlib("The tables need no matplotlib.")


def say(message: str) -> None:
    """A message to the person, on standard error."""
    print(message, file=sys.stderr)


def show(document: Any) -> None:
    """The result as JSON, on standard output."""
    print(json.dumps(document, indent=1, allow_nan=False))


def notes(lines: Iterable[str]) -> None:
    """What is to be said of the table above."""
    for line in lines:
        console().print(line, style="dim", markup=False, highlight=False)


def console() -> Console:
    """Where tables go: as wide as the terminal, or wide enough where there is none."""
    out = Console()
    return out if out.is_terminal else Console(width=160)
