"""Speed of the engines on a workload, beside a plain loop over the clients and central training."""

import time
from collections.abc import Callable
from contextlib import ExitStack
from importlib.util import find_spec
from statistics import median
from typing import NamedTuple

from kedge.bench.cluster_rounds import cluster_rounds
from kedge.bench.loops import central, plain_loop
from kedge.bench.rounds import Round, rounds_of
from kedge.bench.timing import Timing, block_speed, median_ratio, warm_up
from kedge.bench.workloads import Workload
from kedge.config.task import Task
from kedge.engines.choice.choose import Choice, EngineOptions, build, choose
from kedge.engines.choice.trial import Work
from kedge.engines.cuda.captured import captured_stack
from kedge.engines.sequential import Sequential
from kedge.engines.stack.direct import Direct
from kedge.engines.stack.stacked import Stacked

PLAIN, CENTRAL = "plain loop", "central"
LONG_RUN = 100_000  # rounds of an experiment that repays compiling


class EngineSpeed(NamedTuple):
    """The speed of one way to do a workload."""

    workload: str
    how: str
    samples_per_second: float
    to_plain: float | None
    to_central: float | None
    warmup_seconds: float


class Warm(NamedTuple):
    """Rounds that are ready to be timed, and the seconds of their warm-up."""

    round: Round
    seconds: float


def engine_speeds(work: Workload, timing: Timing) -> list[EngineSpeed]:
    """Warm up every way to do the workload, then measure all in turns."""
    timing = timing._replace(compiled=timing.compiled and (work.compiled or timing.on_gpu))
    task = work.task(timing.device)
    warm: dict[str, Warm] = {}
    with ExitStack() as running:
        for how, make in ways(work, task, timing, running).items():
            timing.say(f"{work.name}: warming up {how}")
            warm[how] = prepare(make, timing.device)
        choice = automatic_choice(work, task, timing.compiled)
        auto = f"{choice.name}, compiled" if choice.name == "stacked" and choice.compiled else choice.name
        if auto not in warm:
            warm[auto] = prepare(
                lambda: rounds_of(task, build(choice, task.model, task.federation)), timing.device
            )
        timing.say(f"{work.name}: measuring")
        speeds: dict[str, list[float]] = {how: [] for how in warm}
        for _ in range(timing.repeats):
            for how, ready in warm.items():
                speeds[how].append(block_speed(ready.round, timing.device))
    return [
        EngineSpeed(
            work.name,
            f"{how} (auto)" if how == auto else how,
            median(speeds[how]),
            median_ratio(speeds[how], speeds[PLAIN]),
            median_ratio(speeds[how], speeds[CENTRAL]),
            ready.seconds,
        )
        for how, ready in warm.items()
    ]


def ways(work: Workload, task: Task, timing: Timing, running: ExitStack) -> dict[str, Callable[[], Round]]:
    """The ways to do the workload, by name: plain loop, this device's engines, and central training.

    `running` ends the cluster, if Ray is installed.
    """
    model, data = task.model, task.federation
    factories: dict[str, Callable[[], Round]] = {
        PLAIN: lambda: plain_loop(work, data),
        "sequential": lambda: rounds_of(task, Sequential(model, data)),
        "stacked": lambda: rounds_of(task, Stacked(model, data)),
    }
    if timing.compiled and timing.on_gpu:
        factories["captured"] = lambda: rounds_of(
            task, captured_stack(model, data, participants=task.participants)
        )
    elif timing.compiled:
        factories["stacked, compiled"] = lambda: rounds_of(
            task, Stacked(model, data, backend=Direct(True, model.half))
        )
    if has_ray():
        rounds = LONG_RUN if timing.compiled else 1
        factories["ray"] = lambda: running.enter_context(cluster_rounds(task, "fp32", rounds))
    return factories | {CENTRAL: lambda: central(work, data)}


def has_ray() -> bool:
    """Whether Ray is installed."""
    return find_spec("ray") is not None


def prepare(make: Callable[[], Round], device: str) -> Warm:
    """Make the rounds of one way, and warm them up."""
    start = time.perf_counter()
    round = warm_up(make(), device)
    return Warm(round, time.perf_counter() - start)


def automatic_choice(work: Workload, task: Task, compiled: bool, streams: int = 1) -> Choice:
    """The engine that `auto` chooses; `compiled`: for a run that is long enough to repay compiling."""
    rounds = LONG_RUN if compiled else 1
    return choose(
        Work(task.model, task.federation, task.stages[0], work.per_round, rounds),
        EngineOptions(streams=streams),
    )
