"""The history of a run: one line per round, and the checks of its files when a run resumes.

A line's `time` has the seconds of its round: `train_seconds` until the server was updated, and `seconds` with
all evaluation. Work that overlaps with the next round is part of that round's time, and counted once.
"""

import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from kedge.config.task import History
from kedge.core.errors import CheckpointError, DataError
from kedge.measure.cost.cost import Cost
from kedge.running.folders.folder import Lines, hash_of, line_of, read_lines
from kedge.running.progress import Observer
from kedge.running.recording.evaluation import PendingResults, finite_or_none
from kedge.running.recording.site_metrics import Evaluated

FILES = ("history", "clients")


def history_problem(folder: Path, facts: Mapping[str, Any]) -> str | None:
    """The mismatch between the histories in `folder` and the `facts` of a checkpoint, or None.

    Compares lengths and checksums. A checkpoint of version 0.1 has no checksums: then checks the lines.
    """
    checksums = facts.get("sha256", {})
    for name, length in facts.get("lengths", {}).items():
        path = folder / f"{name}.jsonl"
        if not path.is_file():
            return f"{path} is missing; it had {length} bytes when the run was saved"
        try:
            checksum = hash_of(path, length).hexdigest()
            if name not in checksums:
                check_lines(path, name, facts["round"], length)
        except (CheckpointError, DataError) as error:
            return str(error).rstrip(".")
        if checksum != checksums.get(name, checksum):
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
        expected = range(1, (len(numbers) if rounds is None else rounds) + 1)
        if numbers != list(expected):
            raise DataError(f"{path} is damaged: it lacks lines, or has some twice")
    elif not all(isinstance(n, int) for n in numbers) or numbers != sorted(set(numbers)):
        raise DataError(f"{path} is damaged: its rounds are not in order")


def complete_rounds(folder: Path) -> int | None:
    """The number of rounds in a run's histories; None if a file is missing or damaged."""
    try:
        for name in FILES:
            if not (folder / f"{name}.jsonl").is_file():
                return None
            check_lines(folder / f"{name}.jsonl", name)
    except DataError:
        return None
    lines = read_lines(folder / "history.jsonl")
    return len(lines) - (1 if lines and lines[-1].get("diverged") else 0)


class UnfinishedLine(NamedTuple):
    """A line of the history whose evaluation may still run."""

    values: dict[str, Any]
    evaluated: PendingResults | None  # None: the round is not evaluated
    time: dict[str, float]  # empty: not written
    cost: Cost | None  # None: not written
    late: Evaluated | None = None  # not None: its clients' metrics arrive with the next round's replies

    def saved(self) -> dict[str, Any]:
        """A late line as JSON."""
        assert self.late is not None
        cost = None if self.cost is None else self.cost._asdict()
        return {"values": self.values, "time": self.time, "cost": cost, "late": self.late._asdict()}


def late_line(saved: Mapping[str, Any], evaluated: Callable[[Evaluated], PendingResults]) -> UnfinishedLine:
    """The late line that `UnfinishedLine.saved` has stored."""
    late = Evaluated(**saved["late"])
    cost = None if saved["cost"] is None else Cost(**saved["cost"])
    return UnfinishedLine(saved["values"], evaluated(late), saved["time"], cost, late)


class HistoryWriter:
    """Writes the lines of a run in the order of the rounds. The newest line may wait for its evaluation."""

    def __init__(
        self, folder: Path | None, lengths: dict[str, int], history: History, observer: Observer
    ) -> None:
        """Truncate the files in `folder` to `lengths` bytes; `history` has the lines up to there."""
        self.files = {name: Lines(folder / f"{name}.jsonl", lengths.get(name, 0)) for name in FILES if folder}
        self.history, self.observer = history, observer
        self.waiting: UnfinishedLine | None = None

    def add(self, line: UnfinishedLine, overlapped: bool = False) -> None:
        """Write the previous line, and keep this line until its results are complete."""
        self.flush(overlapped)
        self.waiting = line

    @property
    def late(self) -> UnfinishedLine | None:
        """The newest line, if it waits for metrics of clients that arrive with the next round's replies."""
        return self.waiting if self.waiting and self.waiting.late else None

    def flush(self, overlapped: bool = False) -> None:
        """Wait for the results of the newest line and write it; do nothing if all lines are written.

        If `overlapped`, the next round trains in the meantime, and its `time` includes the wait.
        """
        if self.waiting is None:
            return
        unfinished = self.waiting
        began = time.perf_counter()
        metrics, by_client = unfinished.evaluated() if unfinished.evaluated else ({}, {})
        waited = time.perf_counter() - began
        self.waiting = None  # only now: an interrupt during the wait leaves the line to be written
        line = {**unfinished.values, **{k: finite_or_none(v) for k, v in metrics.items()}}
        if unfinished.time:
            seconds = unfinished.time["seconds"] + (0 if overlapped else waited)
            line["time"] = {**unfinished.time, "seconds": seconds}
        if unfinished.cost is not None:
            line["cost"] = unfinished.cost._asdict()
        if self.files:
            self.files["history"].append(line)
            if by_client:
                self.files["clients"].append({"round": line["round"], **by_client})
        self.history.append(line)
        self.observer.line(line)

    def write_diverged(self, line: dict[str, Any]) -> None:
        """Write the last line of a run that diverged, to the file only."""
        self.flush()
        if self.files:
            self.files["history"].append({**line, "diverged": True})

    def close(self) -> None:
        """Close the files."""
        for file in self.files.values():
            file.close()
