"""Train the runs of a table in this process or in several, and make a record of each finished run.

A run has a temporary folder while it trains. Its history is recorded, and the folder is removed. A run that
is stopped starts from the beginning the next time.

Several processes can share one device, each training one pack of runs after another. They compile their
programs in parallel, and find programs that another process has compiled in torch's cache. With the engine
"ray" the runs train as tasks of a cluster instead (running/tasks/).
"""

import time
from collections.abc import Callable, Generator, Iterator, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

from kedge.reproduce.plan import Run
from kedge.reproduce.records import Record, Sitting, curves_of
from kedge.reproduce.workers import RunEnd, run_end, train_in_processes
from kedge.running.folders.folder import read_lines
from kedge.running.packs.grouping import groups
from kedge.running.requests import RunRequest
from kedge.running.several_runs import run_all


class TrainedRun(NamedTuple):
    """A run that ended: with its record, or with an error."""

    run: Run
    record: Record | None
    error: str = ""
    trace: str = ""


class TrainOptions(NamedTuple):
    """Options and callbacks of `train`; `report_rounds` receives the number of rounds that are done."""

    sitting: Sitting
    start: float  # time.monotonic() at the start of the sitting
    workers: int = 1
    pack: int = 0  # runs per pack; 0: as many as fit into memory
    shown: bool | None = None  # whether a single process shows its progress; None: if there is a terminal
    say: Callable[[str], None] = print
    stop: Callable[[], bool] = lambda: False
    report_rounds: Callable[[int], None] = lambda rounds: None  # only called if workers > 1
    folder: Path | None = None  # where the runs have their temporary folders; None: the system's place


def train(runs: Sequence[Run], options: TrainOptions) -> Generator[TrainedRun, None, None]:
    """Train all runs; raise Interrupted after the current round if `options.stop()` is true."""
    # Errors are ignored because threads of abandoned runs still write.
    place = TemporaryDirectory(prefix="kedge-reproduce-", dir=options.folder, ignore_cleanup_errors=True)
    with place as top:
        folders = {Path(top) / str(number): run for number, run in enumerate(runs)}
        requests = [RunRequest(folder, run.experiment) for folder, run in folders.items()]
        for end in train_requests(requests, options):
            run = folders[end.folder]
            if end.error and not end.diverged:
                yield TrainedRun(run, None, end.error, end.trace)
            else:
                yield TrainedRun(run, record_of(run, end, options), end.error)


def train_requests(requests: Sequence[RunRequest], options: TrainOptions) -> Iterator[RunEnd]:
    """Train all runs, and yield the end of each run when it ends."""
    if options.workers > 1:
        jobs = by_program(groups(requests))

        def report() -> None:
            options.report_rounds(sum(rounds_in(request.folder) for request in requests))

        yield from train_in_processes(jobs, options.workers, options.pack, options.say, options.stop, report)
    else:
        spread = True  # over a cluster, with the engine "ray"
        for outcome in run_all(requests, options.pack, options.shown, options.say, options.stop, spread):
            yield run_end(outcome)


def by_program(jobs: Sequence[list[RunRequest]]) -> list[list[RunRequest]]:
    """The jobs in an order in which consecutive jobs have different programs.

    Methods and schedules that differ only in an argument often have the same programs, so a later job finds
    them compiled. Jobs with a schedule are first, because they have several programs.
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
    """The rounds in the history of a training run."""
    file = folder / "history.jsonl"
    return file.read_bytes().count(b"\n") if file.is_file() else 0


def record_of(run: Run, end: RunEnd, options: TrainOptions) -> Record:
    """The record of a run that finished or diverged."""
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
        elapsed=round(time.monotonic() - options.start, 1),
        history=curves_of(history),
        sitting=options.sitting,
        diverged=end.diverged,
    )
