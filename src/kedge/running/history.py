"""The history of a run: a line a round, in the order of the rounds; the newest may wait for its numbers.

A line's `time` is what the run spent on its round: `train_seconds` until the server was updated, `seconds`
with all that is measured. What is done while the next round trains is in that one's time, and counted once.
"""

import time
from pathlib import Path
from typing import Any, NamedTuple

from kedge.measure.cost import Cost
from kedge.running.folder import Lines
from kedge.running.measuring import Measured, number
from kedge.running.task import History, Observer


class Entry(NamedTuple):
    """A line as far as it is known when its round is done."""

    line: dict[str, Any]
    measured: Measured | None  # what gives the rest; None: the models were not evaluated
    time: dict[str, float]


class Scribe:
    """Writes the lines of a run, to its folder if it has one, and tells who watches."""

    def __init__(
        self, folder: Path | None, lengths: dict[str, int], history: History, observer: Observer
    ) -> None:
        """Files are cut back to their `lengths`; `history` has the lines up to there."""
        self.files = {
            name: Lines(folder / f"{name}.jsonl", lengths.get(name, 0))
            for name in ("history", "clients")
            if folder
        }
        self.history, self.observer = history, observer
        self.waiting: tuple[Entry, Cost] | None = None

    def take(self, entry: Entry, cost: Cost, training: bool = False) -> None:
        """The next round's line, which is to wait; the one before it is written."""
        self.write(training)
        self.waiting = entry, cost

    def write(self, training: bool = False) -> None:
        """Write the line that waits, if one does, as soon as its numbers are there.

        `training`: while a round trains, whose time this is then.
        """
        if self.waiting is None:
            return
        entry, cost = self.waiting
        began = time.perf_counter()
        metrics, by_client = entry.measured() if entry.measured else ({}, {})
        waited = time.perf_counter() - began
        self.waiting = None  # only now: who is interrupted while waiting may ask again
        line = {
            **entry.line,
            **{k: number(v) for k, v in metrics.items()},
            "time": {**entry.time, "seconds": entry.time["seconds"] + (0 if training else waited)},
            "cost": cost._asdict(),
        }
        if self.files:
            self.files["history"].append(line)
            if by_client:
                self.files["clients"].append({"round": line["round"], **by_client})
        self.history.append(line)
        self.observer.line(line)

    def diverged(self, line: dict[str, Any]) -> None:
        """The last line of a run that diverged; only the file has it."""
        self.write()
        if self.files:
            self.files["history"].append({**line, "diverged": True})

    def close(self) -> None:
        """Let go of the files."""
        for file in self.files.values():
            file.close()
