"""What measuring drift costs: a round with it beside the same round without, in turns, in one run.

A measured round is what the runner does under `measure.drift`: the correction that looks at updates, its
numbers, and the local drift out of all clients' memories (FedDyn has one, FedAvg has not). The cost does not
depend on the local steps, of which the workload has ten, one epoch of 500 samples: longer rounds pay less.
"""

import time
from collections.abc import Callable
from typing import NamedTuple

from kedge.algorithms import fedavg, feddyn
from kedge.bench.bench import rounds_of, synchronize
from kedge.bench.loops import Round
from kedge.bench.methods import Ratio, summary
from kedge.bench.work import task_of
from kedge.bench.workloads import Workload
from kedge.config.diagnostics import observed
from kedge.core.algorithm import Algorithm
from kedge.core.server import Server
from kedge.engines.engine import Engine
from kedge.engines.stacked import Stacked
from kedge.measure.local_drift import drift_correction, local_drift
from kedge.measure.settings import Measure
from kedge.running.recording.diagnostics import updates_correction

BOUND = 1.1  # of a round's time
METHODS: dict[str, Algorithm] = {"fedavg": fedavg(), "feddyn": feddyn()}


class Overhead(NamedTuple):
    """A round with diagnostics to the same round without."""

    method: str
    ratio: Ratio
    bound: float

    @property
    def holds(self) -> bool:
        """Whether the median is within the bound."""
        return self.ratio.middle <= self.bound


def overheads(
    work: Workload, device: str = "cpu", repeats: int = 7, say: Callable[[str], None] = lambda message: None
) -> list[Overhead]:
    """The cost of measure.drift under the stacked engine, method by method."""
    rows = []
    for name, algorithm in METHODS.items():
        say(f"{work.name}: warming up {name}")
        without, looking = plain(work, algorithm, device), measured(work, algorithm, device)
        for one in (without, looking):
            one(0)
            one(1)
        say(f"{work.name}: measuring {name}")
        ratio = summary([turn(without, looking, device) for _ in range(repeats)])
        assert ratio is not None
        rows.append(Overhead(name, ratio, BOUND))
    return rows


def turn(without: Round, looking: Round, device: str) -> float:
    """A measured round to the mean of the plain rounds before and after it."""
    before, own, after = (seconds(one, device) for one in (without, looking, without))
    return 2 * own / (before + after)


def seconds(one: Round, device: str) -> float:
    """The time of a round."""
    synchronize(device)
    start = time.perf_counter()
    one(2)
    synchronize(device)
    return time.perf_counter() - start


def plain(work: Workload, algorithm: Algorithm, device: str) -> Round:
    """Rounds without diagnostics."""
    task = task_of(work, algorithm, device)
    return rounds_of(task, Stacked(task.model, task.federation))


def measured(work: Workload, algorithm: Algorithm, device: str) -> Round:
    """Rounds with diagnostics, every number of which is read."""
    model = task_of(work, algorithm, device).model
    looking = observed(algorithm, model, Measure(drift=True))
    task = task_of(work, looking, device)
    facts = task.federation.facts()
    own, source = updates_correction(looking), drift_correction(looking)
    assert own is not None

    def tell(server: Server, engine: Engine) -> None:
        for correction in looking.corrections:
            for value in correction.measures(server.slots[correction.name]).values():
                float(value)
        if source:
            local_drift(source, engine.save(), facts, own.units)

    return rounds_of(task, Stacked(task.model, task.federation), tell)
