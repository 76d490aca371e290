"""Speed of packed runs: runs of one client a round, alone and as one stack.

The runs differ in their seeds. The weights after the last round are compared with the weights of the same
runs alone on one stream: max |packed − alone| / max |alone| of each leaf, the largest of all leaves and runs.
"""

import time
from collections.abc import Sequence
from itertools import pairwise
from statistics import median
from typing import NamedTuple

from kedge.bench.networks.setting import BATCH, Setting
from kedge.bench.networks.ways import dividing
from kedge.bench.rounds import start_run, train_round
from kedge.bench.timing import WARM_UP_ROUNDS, Timing, synchronize
from kedge.config.task import Task
from kedge.core.model import Model
from kedge.core.tree import Leaves
from kedge.data.federation import Federation
from kedge.engines.cuda.captured import captured_stack
from kedge.engines.engine import Engine, Rounds, drive
from kedge.engines.pack.pack import Pack
from kedge.engines.stack.planner import Participants
from kedge.engines.stack.stacked import Stacked
from kedge.nn.precision import Precision, computing_in


class PackSpeed(NamedTuple):
    """A row of the table."""

    precision: Precision
    runs: int
    streams: int  # of the pack
    rounds: int  # after which weights are compared
    alone: float  # samples per second of one run
    packed: float  # samples per second of all runs together
    ratio: float
    difference: float  # of the final weights, relative


class TimedRun(NamedTuple):
    """A finished run: the seconds of each round after the warm-up, and the weights."""

    seconds: list[float]
    weights: Leaves


def pack_speeds(
    setting: Setting,
    precisions: Sequence[Precision],
    timing: Timing,
    runs: int = 4,
    streams: Sequence[int] = (1,),
) -> list[PackSpeed]:
    """A row for each precision and number of streams."""
    data = setting.federation(timing.device)
    rows = []
    for precision in precisions:
        tasks = [setting.task(data, precision, seed=seed) for seed in range(runs)]
        counts = dividing(streams, runs * setting.clients)
        with computing_in(precision):
            rows += measure(setting, tasks, precision, counts, timing)
    return rows


def measure(
    setting: Setting, tasks: Sequence[Task], precision: Precision, streams: Sequence[int], timing: Timing
) -> list[PackSpeed]:
    """Train half of the runs alone, then the packs, then the other half alone: the machine may slow down."""
    runs, rounds, half = len(tasks), WARM_UP_ROUNDS + timing.repeats, len(tasks) // 2
    timing.say(f"packing, {precision}: runs alone")
    alone = [run_alone(task, rounds, timing.device) for task in tasks[:half]]
    packs = {}
    for count in streams:
        timing.say(f"packing, {precision}: {runs} runs packed" + f", {count} streams" * (count > 1))
        packs[count] = run_packed(tasks, rounds, timing.device, count)
    timing.say(f"packing, {precision}: runs alone")
    alone += [run_alone(task, rounds, timing.device) for task in tasks[half:]]
    samples = setting.clients * setting.steps * BATCH  # of a run in a round
    alone_speed = samples / median(seconds for run in alone for seconds in run.seconds)
    rows = []
    for count, packed in packs.items():
        speed = runs * samples / median(packed[-1].seconds)
        ratio = speed / alone_speed
        difference = max(distance(a.weights, b.weights) for a, b in zip(packed, alone, strict=True))
        rows.append(PackSpeed(precision, runs, count, rounds, alone_speed, speed, ratio, difference))
    return rows


def run_packed(tasks: Sequence[Task], rounds: int, device: str, streams: int = 1) -> list[TimedRun]:
    """Train all runs in one pack. The last run of each round ends the round, so only this run is timed."""
    engines = [stack(task.model, task.federation, device, task.participants, streams) for task in tasks]
    pack = Pack(engines, lambda model, data: stack(model, data, device, streams=streams))
    ended: dict[int, TimedRun] = {}

    def on_end(number: int, end: TimedRun | BaseException) -> None:
        if isinstance(end, BaseException):
            raise end
        ended[number] = end

    runs = [
        timed_run(task, engine, rounds, device, clock=task is tasks[-1])
        for task, engine in zip(tasks, engines, strict=True)
    ]
    pack.train_runs(runs, on_end)
    return [ended[number] for number in range(len(tasks))]


def run_alone(task: Task, rounds: int, device: str) -> TimedRun:
    """Train one run by itself."""
    engine = stack(task.model, task.federation, device, task.participants)
    return drive(timed_run(task, engine, rounds, device), engine)


def timed_run(task: Task, engine: Engine, rounds: int, device: str, clock: bool = True) -> Rounds[TimedRun]:
    """A run of `rounds` rounds, which are timed if `clock`."""
    run, stamps = start_run(task, engine), []
    for number in range(rounds):
        yield from train_round(run, number)
        if clock:
            synchronize(device)
            stamps.append(time.perf_counter())
    seconds = [after - before for before, after in pairwise(stamps[WARM_UP_ROUNDS - 1 :])]
    return TimedRun(seconds, {name: value.cpu() for name, value in run.server.shared.items()})


def stack(
    model: Model, data: Federation, device: str, participants: Participants | None = None, streams: int = 1
) -> Stacked:
    """The stacked engine, on a GPU with captured graphs."""
    if device != "cuda":
        return Stacked(model, data)
    return captured_stack(model, data, participants=participants, streams=streams)


def distance(left: Leaves, right: Leaves) -> float:
    """The largest difference of a leaf, relative to the leaf's largest value on the right."""
    return max(float((left[name] - v).abs().max() / v.abs().max()) for name, v in right.items())
