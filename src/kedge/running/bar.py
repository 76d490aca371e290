"""A live progress bar on standard error; silent where there is no terminal."""

from types import TracebackType
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from kedge.running.task import Observer

ACCURACIES = ("distributed.global.accuracy", "distributed.local.accuracy")


class Bar:
    """Shows a run's lines as they come."""

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
            TextColumn("left"),
            console=self.console,
            disable=not self.shown,
        )
        self.task = self.progress.add_task(title, total=rounds, accuracy="–", speed="–")

    def __enter__(self) -> "Bar":
        self.progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.progress.stop()

    def line(self, line: dict[str, Any]) -> None:
        """Take a history line in."""
        found = next((line[m] for m in ACCURACIES if line.get(m) is not None), None)
        self.accuracy = f"{100 * found:.1f} %" if found is not None else self.accuracy
        speed = f"{line['time']['samples_per_second']:,.0f}"
        self.progress.update(self.task, completed=line["round"], accuracy=self.accuracy, speed=speed)

    def say(self, message: str) -> None:
        """A message above the bar; also where there is no bar, for it may be a warning."""
        self.progress.console.print(message, style="dim", markup=False, highlight=False, soft_wrap=True)

    def observer(self) -> Observer:
        """The observer that feeds this bar."""
        return Observer(line=self.line, say=self.say)
