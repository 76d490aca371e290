"""Show the progress of `kedge reproduce`: a line for each run that ends, and a bar of all rounds."""

import time
from collections.abc import Sequence
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from kedge.reproduce.plan import Run
from kedge.reproduce.records import Record


class Board:
    """Prints a line for each run that ends; with `show_rounds`, also shows a bar of all runs' rounds."""

    def __init__(self, runs: Sequence[Run], quiet: bool, show_rounds: bool) -> None:
        self.console = Console(stderr=True)
        self.quiet = quiet
        self.count, self.done = len(runs), 0
        self.start = time.monotonic()
        self.errors: set[str] = set()  # already printed
        self.progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            TextColumn("{task.completed:.0f} of {task.total:.0f} rounds"),
            TimeElapsedColumn(),
            TimeRemainingColumn(),
            console=self.console,
            disable=quiet or not show_rounds or not self.console.is_terminal,
        )
        self.bar = self.progress.add_task(self.title, total=sum(run.experiment.rounds for run in runs))

    def __enter__(self) -> Self:
        self.progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.progress.stop()

    @property
    def title(self) -> str:
        """Number of runs that have ended."""
        return f"{self.done} of {self.count} runs"

    def say(self, message: str) -> None:
        """Print a message above the bar."""
        self.progress.console.print(message, style="dim", markup=False, highlight=False, soft_wrap=True)

    def set_rounds(self, rounds: int) -> None:
        """Set the number of completed rounds."""
        self.progress.update(self.bar, completed=rounds, description=self.title)

    def count_run(self, run: Run, record: Record | None, error: str) -> None:
        """Count a run that has ended, and print its line."""
        self.done += 1
        self.progress.update(self.bar, description=self.title)
        if not self.quiet:
            failure = "the same error" if error in self.errors else f"error: {error}"
            self.errors.add(error)
            result = failure if not record else "diverged" if record.diverged else "done"
            seconds = time.monotonic() - self.start
            self.say(f"{self.done:>4} of {self.count}  {seconds:6.0f} s  {run.name}: {result}")
