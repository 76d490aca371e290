"""Progress of a download or a decoding: a bar on standard error, silent without a terminal."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import (
    BarColumn,
    DownloadColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    TextColumn,
    TimeRemainingColumn,
    TransferSpeedColumn,
)

Update = Callable[[int], None]  # takes the number of bytes or items done so far


@contextmanager
def byte_progress(title: str, total: int | None) -> Iterator[Update]:
    """Show a bar that counts bytes."""
    with _bar(title, total, DownloadColumn(), TransferSpeedColumn()) as update:
        yield update


@contextmanager
def item_progress(title: str, total: int) -> Iterator[Update]:
    """Show a bar that counts items."""
    with _bar(title, total, MofNCompleteColumn()) as update:
        yield update


def say(message: str) -> None:
    """Print a line to standard error, with or without a bar."""
    Console(stderr=True).print(message, style="dim", markup=False, highlight=False, soft_wrap=True)


@contextmanager
def _bar(title: str, total: int | None, *columns: ProgressColumn) -> Iterator[Update]:
    console = Console(stderr=True)
    text = TextColumn("{task.description}", markup=False)
    all_columns = (text, BarColumn(), *columns, TimeRemainingColumn())
    with Progress(*all_columns, console=console, disable=not console.is_terminal) as progress:
        task = progress.add_task(title, total=total)
        yield lambda done: progress.update(task, completed=done)
