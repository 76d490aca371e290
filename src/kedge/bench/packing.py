"""Do packed runs pay: runs of one client a round, alone and side by side in one stack.

The runs differ in their seeds: first weights and batches. Each goes through two rounds of warm-up and those
that are timed. The same runs alone, on one stream of a GPU,
say how far from them packed ones end: max |packed − alone| / max |alone| of every leaf, the largest of all
leaves and runs.
"""

import time
from collections.abc import Callable, Sequence
from itertools import pairwise
from statistics import median
from typing import NamedTuple

from kedge.bench.bench import begun_on, one_round, synchronize
from kedge.bench.networks import BATCH, Setting, fitting
from kedge.config.task import Task
from kedge.core.model import Model
from kedge.core.tree import Leaves
from kedge.data.federation import Federation
from kedge.engines.cuda.captured import captured_stack
from kedge.engines.engine import Engine, Rounds, drive
from kedge.engines.pack.pack import Pack
from kedge.engines.planner import Participants
from kedge.engines.stacked import Stacked
from kedge.nn.precision import Precision, computing_in

WARM_UP = 2  # rounds


class Packing(NamedTuple):
    """A row of the table."""

    precision: Precision
    runs: int
    streams: int  # on which the packed runs train
    rounds: int  # after which weights are compared
    alone: float  # samples a second of one run
    packed: float  # of all runs together
    ratio: float
    difference: float  # of final weights, relative


class Ended(NamedTuple):
    """A run that is over: the seconds of each round after its warm-up, and its weights."""

    seconds: list[float]
    weights: Leaves


def packing(
    setting: Setting,
    precisions: Sequence[Precision],
    device: str = "cpu",
    runs: int = 4,
    repeats: int = 7,
    say: Callable[[str], None] = lambda message: None,
    streams: Sequence[int] = (1,),
) -> list[Packing]:
    """The rows. Half of the runs alone come before the pack, half after it, should the machine change."""
    data = setting.federation(device)
    rounds = WARM_UP + repeats
    rows = []
    for precision in precisions:
        tasks = [setting.task(data, precision, seed=seed) for seed in range(runs)]
        half = runs // 2
        with computing_in(precision):
            say(f"packing, {precision}: runs alone")
            by_itself = [alone(task, rounds, device) for task in tasks[:half]]
            packs = {}
            for count in fitting(streams, runs * setting.clients):
                say(f"packing, {precision}: {runs} runs packed" + f", {count} streams" * (count > 1))
                packs[count] = together(tasks, rounds, device, count)
            say(f"packing, {precision}: runs alone")
            by_itself += [alone(task, rounds, device) for task in tasks[half:]]
        samples = setting.clients * setting.steps * BATCH
        slow = samples / median(seconds for one in by_itself for seconds in one.seconds)
        for count, packed in packs.items():
            fast = runs * samples / median(packed[-1].seconds)
            far = max(distance(a.weights, b.weights) for a, b in zip(packed, by_itself, strict=True))
            rows.append(Packing(precision, runs, count, rounds, slow, fast, fast / slow, far))
    return rows


def together(tasks: Sequence[Task], rounds: int, device: str, streams: int = 1) -> list[Ended]:
    """All runs in one pack; the last has the clock: a round is over when it has its own."""
    engines = [stack(task.model, task.federation, device, task.takes_part, streams) for task in tasks]
    pack = Pack(engines, lambda model, whole: stack(model, whole, device, streams=streams))
    ended: dict[int, Ended] = {}

    def over(number: int, end: Ended | BaseException) -> None:
        if isinstance(end, BaseException):
            raise end
        ended[number] = end

    clocks = [task is tasks[-1] for task in tasks]
    given = zip(tasks, engines, clocks, strict=True)
    runs = [timed(task, engine, rounds, device, clock) for task, engine, clock in given]
    pack.carry_out(runs, over)
    return [ended[number] for number in range(len(tasks))]


def alone(task: Task, rounds: int, device: str) -> Ended:
    """One run by itself."""
    engine = stack(task.model, task.federation, device, task.takes_part)
    return drive(timed(task, engine, rounds, device), engine)


def timed(task: Task, engine: Engine, rounds: int, device: str, clock: bool = True) -> Rounds[Ended]:
    """A run, and the time of its rounds if it has the clock."""
    state, stamps = begun_on(task, engine), []
    for number in range(rounds):
        yield from one_round(task, state, number)
        if clock:
            synchronize(device)
            stamps.append(time.perf_counter())
    seconds = [after - before for before, after in pairwise(stamps[WARM_UP - 1 :])]
    return Ended(seconds, {k: v.cpu() for k, v in state["server"].shared.items()})


def stack(
    model: Model, data: Federation, device: str, participants: Participants | None = None, streams: int = 1
) -> Stacked:
    """On a GPU captured graphs, else a stack; of a run, or of all runs with their samples together."""
    if device != "cuda":
        return Stacked(model, data)
    return captured_stack(model, data, participants=participants, streams=streams)


def distance(left: Leaves, right: Leaves) -> float:
    """The largest difference of any leaf, relative to that leaf's largest value."""
    return max(float((left[k] - v).abs().max() / v.abs().max()) for k, v in right.items())
