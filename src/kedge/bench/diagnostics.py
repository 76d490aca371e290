"""The cost of `measure.drift`: the time of a round with it, relative to the same round without.

Each measurement reads the drift that the server computes and, for FedDyn, the local drift from the memories
of all clients. Its cost does not depend on the number of local steps. The workload has ten; in longer rounds
the share is smaller.
"""

from collections.abc import Callable
from typing import NamedTuple

from kedge.algorithms import fedavg, feddyn
from kedge.bench.ratios import Ratio, quartiles
from kedge.bench.rounds import Round, rounds_of
from kedge.bench.timing import WARM_UP_ROUNDS, Timing, round_seconds, warm_up
from kedge.bench.workloads import Workload
from kedge.config.diagnostics import measuring_algorithm
from kedge.config.task import Task
from kedge.core.algorithm import Algorithm
from kedge.core.server import Server
from kedge.engines.engine import Engine
from kedge.engines.stack.stacked import Stacked
from kedge.measure.local_drift import drift_correction, local_drift
from kedge.measure.settings import Measure
from kedge.running.recording.diagnostics import updates_correction

BOUND = 1.1
METHODS: dict[str, Algorithm] = {"fedavg": fedavg(), "feddyn": feddyn()}


class Overhead(NamedTuple):
    """The time of a round with diagnostics, relative to the same round without."""

    method: str
    ratio: Ratio
    bound: float

    @property
    def holds(self) -> bool:
        """Whether the median is within the bound."""
        return self.ratio.middle <= self.bound


def overheads(work: Workload, timing: Timing) -> list[Overhead]:
    """The cost of `measure.drift` on the stacked engine, for FedAvg and FedDyn."""
    rows = []
    for name, algorithm in METHODS.items():
        timing.say(f"{work.name}: warming up {name}")
        without = warm_up(plain_rounds(work, algorithm, timing.device), timing.device)
        measured = warm_up(measured_rounds(work, algorithm, timing.device), timing.device)
        timing.say(f"{work.name}: measuring {name}")
        ratios = [ratio_to_neighbors(without, measured, timing.device) for _ in range(timing.repeats)]
        rows.append(Overhead(name, quartiles(ratios), BOUND))
    return rows


def ratio_to_neighbors(without: Round, measured: Round, device: str) -> float:
    """The time of a measured round, relative to the mean of the plain rounds before and after it."""
    before, seconds, after = (
        round_seconds(round, WARM_UP_ROUNDS, device) for round in (without, measured, without)
    )
    return 2 * seconds / (before + after)


def plain_rounds(work: Workload, algorithm: Algorithm, device: str) -> Round:
    """Rounds without diagnostics."""
    task = work.method_task(algorithm, device)
    return rounds_of(task, Stacked(task.model, task.federation))


def measured_rounds(work: Workload, algorithm: Algorithm, device: str) -> Round:
    """Rounds with diagnostics."""
    model = work.method_task(algorithm, device).model
    observing = measuring_algorithm(algorithm, model, Measure(drift=True))
    task = work.method_task(observing, device)
    return rounds_of(task, Stacked(task.model, task.federation), drift_reader(task))


def drift_reader(task: Task) -> Callable[[Server, Engine], None]:
    """A function that reads every number of the drift after a round, as the recorder does."""
    algorithm, facts = task.stages[0].algorithm, task.federation.facts()
    updates, source = updates_correction(algorithm), drift_correction(algorithm)
    assert updates is not None

    def read(server: Server, engine: Engine) -> None:
        for correction in algorithm.corrections:
            for value in correction.measures(server.slots[correction.name]).values():
                float(value)
        if source:
            local_drift(source, engine.save(), facts, updates.units)

    return read
