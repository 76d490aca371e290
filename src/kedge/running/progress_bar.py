"""Progress bars on standard error; silent if it is no terminal."""

import threading
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Any, Self

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from kedge.running.progress import Observer

ACCURACIES = ("distributed.global.accuracy", "distributed.local.accuracy")


class Bar:
    """Shows the progress of one run."""

    def __init__(self, title: str, rounds: int, shown: bool | None = None) -> None:
        self.console = Console(stderr=True)
        self.shown = self.console.is_terminal if shown is None else shown
        self.accuracy = "–"
        self.progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("accuracy {task.fields[accuracy]}  {task.fields[speed]} samples/s"),
            TimeRemainingColumn(),
            TextColumn("left{task.fields[ended]}"),
            console=self.console,
            disable=not self.shown,
        )
        self.task = self.progress.add_task(title, total=rounds, accuracy="–", speed="–", ended="")

    def __enter__(self) -> Self:
        self.progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.progress.stop()

    def line(self, line: dict[str, Any]) -> None:
        """Show the round, accuracy and speed of a history line."""
        accuracy = accuracy_in(line)
        self.accuracy = f"{100 * accuracy:.1f} %" if accuracy is not None else self.accuracy
        speed = f"{line['time']['samples_per_second']:,.0f}" if "time" in line else ""
        self.progress.update(self.task, completed=line["round"], accuracy=self.accuracy, speed=speed)

    def say(self, message: str) -> None:
        """Print a message above the bar; also without a bar, because it may be a warning."""
        self.progress.console.print(message, style="dim", markup=False, highlight=False, soft_wrap=True)

    def observer(self) -> Observer:
        """An observer that calls `line` and `say` of this bar."""
        return Observer(line=self.line, say=self.say)


class PackBar(Bar):
    """Shows several runs that train at once: rounds and samples/s of all runs, mean accuracy, ended runs.

    The thread of the runs adds history lines; the main thread counts ended runs.
    """

    def __init__(self, title: str, rounds: Sequence[int], shown: bool | None = None) -> None:
        super().__init__(title, sum(rounds), shown)
        self.rounds: dict[int, int] = {}
        self.speeds: dict[int, float] = {}
        self.accuracies: dict[int, float] = {}
        self.finished = self.failed = 0
        self.lock = threading.Lock()

    def line_callback(self, run: int) -> Callable[[dict[str, Any]], None]:
        """A callback for the history lines of this run."""

        def add_line(line: dict[str, Any]) -> None:
            accuracy = accuracy_in(line)
            with self.lock:
                self.rounds[run], self.speeds[run] = line["round"], line["time"]["samples_per_second"]
                if accuracy is not None:
                    self.accuracies[run] = accuracy
                self.update()

        return add_line

    def count_end(self, run: int, error: BaseException | None) -> None:
        """Count a run as finished or failed."""
        with self.lock:
            self.speeds.pop(run, None)
            self.finished += error is None
            self.failed += isinstance(error, Exception)
            self.update()

    def update(self) -> None:
        """Update the displayed values."""
        accuracies = self.accuracies.values()
        ends = [f"{self.finished} finished"] if self.finished else []
        ends += [f"{self.failed} failed"] if self.failed else []
        self.progress.update(
            self.task,
            completed=sum(self.rounds.values()),
            accuracy=f"{100 * sum(accuracies) / len(accuracies):.1f} %" if accuracies else "–",
            speed=f"{sum(self.speeds.values()):,.0f}" if self.speeds else "–",
            ended=f"  {', '.join(ends)}" if ends else "",
        )


def accuracy_in(line: dict[str, Any]) -> float | None:
    """The distributed model's accuracy in a history line, or None."""
    return next((line[m] for m in ACCURACIES if line.get(m) is not None), None)
