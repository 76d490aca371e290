"""The history of a run: a line a round, in the order of the rounds; the newest may wait for its numbers.

A line's `time` is what the run spent on its round: `train_seconds` until the server was updated, `seconds`
with all that is measured. What is done while the next round trains is in that one's time, and counted once.
"""

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from kedge.config.task import History
from kedge.core.errors import CheckpointError, DataError
from kedge.measure.cost.cost import Cost
from kedge.running.folders.folder import Lines, hash_of, line_of, read_lines
from kedge.running.progress import Observer
from kedge.running.recording.measuring import Measured, number

FILES = ("history", "clients")


def history_problem(folder: Path, facts: Mapping[str, Any]) -> str | None:
    """Why the histories in `folder` do not match the `facts` of a checkpoint; None if they match.

    Compares lengths and checksums. A checkpoint of version 0.1 has no checksums: then checks the lines.
    """
    checksums = facts.get("sha256", {})
    for name, length in facts.get("lengths", {}).items():
        path = folder / f"{name}.jsonl"
        if not path.is_file():
            return f"{path} is missing; it had {length} bytes when the run was saved"
        try:
            found = hash_of(path, length).hexdigest()
            if name not in checksums:
                check_lines(path, name, facts["round"], length)
        except CheckpointError as error:
            return str(error).rstrip(".")
        except DataError as error:
            return str(error).rstrip(".")
        if found != checksums.get(name, found):
            return f"the first {length} bytes of {path} have changed since the run was saved"
    return None


def check_lines(path: Path, name: str, rounds: int | None = None, length: int | None = None) -> None:
    """Raise unless the first `length` bytes are `rounds` complete lines, in the order of their rounds."""
    content = path.read_bytes()[:length]
    if length is not None and content and not content.endswith(b"\n"):
        raise DataError(f"{path} is damaged: byte {length} is not the end of a line")
    lines = content.rpartition(b"\n")[0].split(b"\n") if content else []
    numbers: list[Any] = [line_of(path, number, line).get("round") for number, line in enumerate(lines, 1)]
    if name == "history":
        wanted = range(1, (len(numbers) if rounds is None else rounds) + 1)
        if numbers != list(wanted):
            raise DataError(f"{path} is damaged: it lacks lines, or has some twice")
    elif not all(isinstance(n, int) for n in numbers) or numbers != sorted(set(numbers)):
        raise DataError(f"{path} is damaged: its rounds are not in order")


def whole_rounds(folder: Path) -> int | None:
    """The number of rounds in a run's histories; None if a history is missing or damaged."""
    try:
        for name in FILES:
            if not (folder / f"{name}.jsonl").is_file():
                return None
            check_lines(folder / f"{name}.jsonl", name)
    except DataError:
        return None
    lines = read_lines(folder / "history.jsonl")
    return len(lines) - (1 if lines and lines[-1].get("diverged") else 0)


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
        self.files = {name: Lines(folder / f"{name}.jsonl", lengths.get(name, 0)) for name in FILES if folder}
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
