"""How far a download or a decoding is: a bar on standard error, silent where that is no terminal."""

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

Done = Callable[[int], None]  # takes how much is done so far


@contextmanager
def downloading(title: str, total: int | None) -> Iterator[Done]:
    """A bar that counts bytes."""
    with _bar(title, total, DownloadColumn(), TransferSpeedColumn()) as done:
        yield done


@contextmanager
def counting(title: str, total: int) -> Iterator[Done]:
    """A bar that counts things."""
    with _bar(title, total, MofNCompleteColumn()) as done:
        yield done


def say(message: str) -> None:
    """A line on standard error, bar or no bar."""
    Console(stderr=True).print(message, style="dim", markup=False, highlight=False, soft_wrap=True)


@contextmanager
def _bar(title: str, total: int | None, *columns: ProgressColumn) -> Iterator[Done]:
    console = Console(stderr=True)
    text = TextColumn("{task.description}", markup=False)
    every = (text, BarColumn(), *columns, TimeRemainingColumn())
    with Progress(*every, console=console, disable=not console.is_terminal) as progress:
        task = progress.add_task(title, total=total)
        yield lambda done: progress.update(task, completed=done)
