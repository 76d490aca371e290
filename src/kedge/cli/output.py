"""Output of the commands: results on standard output, progress and messages on standard error."""

import json
import sys
from collections.abc import Iterable
from typing import Any

from rich.console import Console

WIDTH = 160  # of tables in a file or a pipe


def print_message(message: str) -> None:
    """Print a message on standard error."""
    print(message, file=sys.stderr)


def print_json(document: Any) -> None:
    """Print the result as JSON on standard output."""
    print(json.dumps(document, indent=1, allow_nan=False))


def print_notes(lines: Iterable[str]) -> None:
    """Print lines dimmed, as remarks below a table."""
    for line in lines:
        console().print(line, style="dim", markup=False, highlight=False)


def print_line(line: str, style: str | None = None) -> None:
    """Print one line without line breaks and markup, so that paths in it can be copied."""
    console().print(line, style=style, markup=False, highlight=False, soft_wrap=True)


def console() -> Console:
    """The console of tables: as wide as the terminal, or WIDTH columns without one."""
    out = Console()
    return out if out.is_terminal else Console(width=WIDTH)
