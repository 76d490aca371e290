"""RunsTable: live table of runs that train as tasks; without a terminal, a line at the end of each run."""

import os
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from kedge.running.requests import RunRequest
from kedge.running.tasks.events import Ended, Line

COLUMNS = ("run", "method", "round", "accuracy", "samples/s", "left")


@dataclass
class Row:
    """A run that has started: its newest line, and the round and time at which this command first saw it."""

    line: Line
    first_round: int
    first_seen: float


class RunsTable:
    """Shows the runs that train now, and how many have ended.

    The driver calls `show_line`, `show_end` and `say`; a thread of rich calls `render` a few times in a
    second. `shown`: True, a table; False, nothing; None, a table if standard error is a terminal, else lines.
    """

    def __init__(self, requests: Mapping[int, RunRequest], tasks: int, shown: bool | None) -> None:
        self.requests, self.tasks = requests, tasks
        self.console = Console(stderr=True)
        self.live = self.console.is_terminal if shown is None else shown
        self.prints_ends = shown is None and not self.live
        folders = [request.folder for request in requests.values()]
        self.top = Path(os.path.commonpath([folder.parent for folder in folders])) if folders else Path()
        self.rows: dict[int, Row] = {}
        self.accuracies: dict[int, float] = {}
        self.finished = self.failed = 0
        self.start = time.monotonic()
        self.display = Live(console=self.console, get_renderable=self.render, refresh_per_second=4)

    def __enter__(self) -> Self:
        if self.live:
            self.display.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.live:
            self.display.stop()

    def show_line(self, line: Line) -> None:
        """Show the newest line of a run."""
        if line.accuracy is not None:
            self.accuracies[line.run] = line.accuracy
        row = self.rows.get(line.run)
        if row and row.first_round <= line.round:
            row.line = line
        else:
            self.rows[line.run] = Row(line, line.round, time.monotonic())

    def show_end(self, end: Ended) -> None:
        """Remove a run that has ended, and count it."""
        row = self.rows.pop(end.run, None)
        self.finished += not end.text
        self.failed += bool(end.text)
        if self.prints_ends:
            rounds = f"round {row.line.round}" if row else "no round"
            result = f"{rounds}, accuracy {self.accuracy(end.run)}" if not end.text else "failed"
            done, seconds = self.finished + self.failed, time.monotonic() - self.start
            self.say(f"{done:>4} of {len(self.requests)}  {seconds:6.0f} s  {self.name(end.run)}: {result}")

    def say(self, message: str) -> None:
        """Print a message above the table."""
        self.console.print(message, style="dim", markup=False, highlight=False, soft_wrap=True)

    def render(self) -> Group:
        """The table of the runs that train now, with a line of counts below."""
        table = Table(header_style="bold", box=None, pad_edge=False, padding=(0, 2, 0, 0))
        for column in COLUMNS:
            table.add_column(column, justify="left" if column in ("run", "method") else "right", no_wrap=True)
        for run, row in sorted(self.rows.copy().items()):
            table.add_row(*self.cells(run, row))
        return Group(table, Text(self.counts(), style="dim"))

    def cells(self, run: int, row: Row) -> list[str]:
        """The cells of a run."""
        experiment, line = self.requests[run].experiment, row.line
        done = line.round - row.first_round
        seconds = (
            (time.monotonic() - row.first_seen) / done * (experiment.rounds - line.round) if done else None
        )
        return [
            self.name(run),
            experiment.label,
            f"{line.round}/{experiment.rounds}",
            self.accuracy(run),
            f"{line.samples_per_second:,.0f}",
            "–" if seconds is None else duration(seconds),
        ]

    def counts(self) -> str:
        """The numbers of runs that have ended, train and wait."""
        waiting = len(self.requests) - self.finished - self.failed - len(self.rows)
        failed = f", {self.failed} failed" if self.failed else ""
        return (
            f"{self.finished} of {len(self.requests)} runs finished{failed}; {len(self.rows)} train, "
            f"{waiting} wait; {self.tasks} task(s) at once"
        )

    def name(self, run: int) -> str:
        """The folder of a run, relative to that of all runs."""
        folder = self.requests[run].folder
        return str(folder.relative_to(self.top)) if folder.is_relative_to(self.top) else str(folder)

    def accuracy(self, run: int) -> str:
        """The last known accuracy of a run."""
        known = self.accuracies.get(run)
        return "–" if known is None else f"{100 * known:.1f} %"


def duration(seconds: float) -> str:
    """A time as h:mm:ss."""
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes // 60}:{minutes % 60:02}:{rest:02}"
