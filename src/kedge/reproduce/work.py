"""Train the runs of a table, in this process or in several, and record each that ends.

A run has a folder of its own only while it trains: its history is recorded, and the folder is removed. A run
that was stopped begins again the next time.

Several processes train side by side on one device, each one pack of runs after another. This is for programs
that must be compiled: they are compiled side by side, and a process finds those of another in torch's cache.
"""

import time
from collections.abc import Callable, Generator, Iterator, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

from kedge.reproduce.plan import Run
from kedge.reproduce.records import Record, Sitting, curves_of
from kedge.reproduce.workers import End, end_of, side_by_side
from kedge.running.folders.folder import read_lines
from kedge.running.packs.grouping import groups
from kedge.running.requests import RunRequest
from kedge.running.several_runs import run_all


class Finished(NamedTuple):
    """How a run ended: with a record, or with an error."""

    run: Run
    record: Record | None
    error: str = ""
    trace: str = ""


class Work(NamedTuple):
    """How runs are trained."""

    sitting: Sitting
    began: float  # time.monotonic() at the start of the sitting
    workers: int = 1
    pack: int = 0  # runs that train at once in a process; 0: as many as fit
    shown: bool | None = None  # whether one process shows its progress; None: if there is a terminal
    say: Callable[[str], None] = print
    stop: Callable[[], bool] = lambda: False
    trained: Callable[[int], None] = lambda rounds: None  # of several processes: the rounds that are done


def train(runs: Sequence[Run], work: Work) -> Generator[Finished, None, None]:
    """Train all runs; raises Interrupted after the round at hand if `work.stop` says so."""
    # Errors are ignored because runs that are abandoned still write.
    with TemporaryDirectory(prefix="kedge-reproduce-", ignore_cleanup_errors=True) as top:
        folders = {Path(top) / str(number): run for number, run in enumerate(runs)}
        members = [RunRequest(folder, run.experiment) for folder, run in folders.items()]
        for end in ends(members, work):
            run = folders[end.folder]
            if end.error and not end.diverged:
                yield Finished(run, None, end.error, end.trace)
            else:
                yield Finished(run, record_of(run, end, work), end.error)


def ends(members: Sequence[RunRequest], work: Work) -> Iterator[End]:
    """The ends of all runs, as they come."""
    if work.workers > 1:
        every = in_order(groups(members))

        def look() -> None:
            work.trained(sum(map(rounds_in, (member.folder for member in members))))

        yield from side_by_side(every, work.workers, work.pack, work.say, work.stop, look)
    else:
        for outcome in run_all(members, work.pack, work.shown, work.say, work.stop):
            yield end_of(outcome)


def in_order(jobs: Sequence[list[RunRequest]]) -> list[list[RunRequest]]:
    """The jobs so that those which begin together have different programs.

    Methods and schedules that differ in an argument only often have the same programs: the later one then
    finds them compiled. Those with a schedule come first, because they have several programs.
    """
    turns: dict[tuple[str, str], int] = {}
    keyed = []
    for number, job in enumerate(jobs):
        first = job[0].experiment
        family = (first.method["name"], first.schedule["name"])
        turns[family] = turn = turns.get(family, -1) + 1
        keyed.append((turn, family[1] == "all", number))
    return [jobs[number] for _, _, number in sorted(keyed)]


def rounds_in(folder: Path) -> int:
    """The rounds in the history of a run that trains."""
    file = folder / "history.jsonl"
    return file.read_bytes().count(b"\n") if file.is_file() else 0


def record_of(run: Run, end: End, work: Work) -> Record:
    """The record of a run that ended, or that diverged."""
    history = read_lines(end.folder / "history.jsonl")
    return Record(
        table=run.table,
        cell=run.cell.settings,
        seed=run.experiment.seed,
        scale=run.scale,
        identity=run.identity,
        precision=run.experiment.engine.precision,
        rounds=len(history),
        samples=sum(line["cost"]["samples"] for line in history if "cost" in line),
        elapsed=round(time.monotonic() - work.began, 1),
        history=curves_of(history),
        sitting=work.sitting,
        diverged=end.diverged,
    )
