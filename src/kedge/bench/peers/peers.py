"""Other frameworks on the same work: pfl-research and Flower's simulation, in turns with kedge in one run.

All train the same network from the same weights, on the same arrays, by the same SGD, and average by samples.
Start-up and the first two rounds are not timed, whoever it is. All but kedge run with torch's own settings,
which on a GPU let convolutions round to tf32; kedge's fp32 does not.
"""

import gc
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import replace
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from statistics import median
from typing import NamedTuple

import torch

from kedge.algorithms import fedavg
from kedge.bench.bench import LONG_RUN, block, rounds_of, synchronize
from kedge.bench.loops import Round, central, plain_loop
from kedge.bench.peers.flower import PeerFailed, flower
from kedge.bench.peers.pfl import pfl_research
from kedge.bench.workloads import Workload
from kedge.config.task import Task
from kedge.core.algorithm import Stage
from kedge.data.federation import Federation
from kedge.engines.choose import Choice, build, choose
from kedge.engines.trial import Work
from kedge.nn.precision import Precision, computing_in, in_precision

PLAIN, CENTRAL, PFL, FLOWER = "plain loop", "central", "pfl-research", "Flower"
REFERENCES = (PLAIN, CENTRAL, PFL, FLOWER)


class Peer(NamedTuple):
    """One way to do the work; without numbers where the note says why."""

    workload: str
    how: str
    precision: Precision | None  # none: torch's own settings
    samples_per_second: float | None
    ratios: dict[str, float | None]  # to each of REFERENCES
    warmup_seconds: float | None
    note: str


class Way(NamedTuple):
    """Something to be timed, and the packages it needs with what installs them."""

    how: str
    precision: Precision | None
    make: Callable[[], AbstractContextManager[Round]]
    needs: tuple[str, ...] = ()
    install: str = ""

    def missing(self) -> bool:
        """Whether a package is neither installed nor beside the benchmark (PYTHONPATH)."""
        return any(find_spec(name) is None for name in self.needs)

    def versions(self) -> str:
        """Of the packages."""
        return ", ".join(f"{name} {version_of(name)}" for name in self.needs)


def compare(
    works: Sequence[Workload],
    device: str = "cpu",
    repeats: int = 7,
    compiled: bool = True,
    say: Callable[[str], None] = lambda message: None,
) -> list[Peer]:
    """The rows, workload by workload."""
    rows: list[Peer] = []
    for work in works:
        task = replace(work.task(device), stages=(Stage(fedavg(), 1, work.local()),))
        rows += timed(work, ways(work, task, device, compiled), device, repeats, say)
        del task
        gc.collect()
        if device == "cuda":
            torch.cuda.empty_cache()
    return rows


def ways(work: Workload, task: Task, device: str, compiled: bool) -> list[Way]:
    """Everyone who does this work."""
    data = task.federation
    with computing_in("fp32"):
        rounds = LONG_RUN if compiled else 1
        auto = choose(Work(task.model, data, task.stages[0], work.per_round, rounds))
    how = f"kedge, {auto.name}" + (", compiled" if auto.compiled and auto.name == "stacked" else "")
    captured = Choice("captured", True, auto.chunk, "asked for")
    fast: tuple[Precision, ...] = ("tf32", "bf16") if device == "cuda" and compiled else ()
    return [
        Way(PLAIN, None, lambda: nullcontext(plain_loop(work, data))),
        Way(f"{how} (auto)", "fp32", partial(kedge, task, auto, "fp32")),
        *(Way("kedge, captured", kind, partial(kedge, task, captured, kind)) for kind in fast),
        Way(CENTRAL, None, lambda: nullcontext(central(work, data))),
        Way(PFL, None, lambda: pfl_research(work, data), ("pfl",), "pfl"),
        Way(FLOWER, None, lambda: simulated(work, data), ("flwr", "ray"), "'flwr[simulation]'"),
    ]


def kedge(task: Task, choice: Choice, precision: Precision) -> AbstractContextManager[Round]:
    """Rounds of this engine in this precision."""
    own = replace(task, model=in_precision(task.model, precision), precision=precision)
    return nullcontext(rounds_of(own, build(choice, own.model, own.federation, own.takes_part)))


@contextmanager
def simulated(work: Workload, data: Federation) -> Iterator[Round]:
    """Flower's rounds."""
    with flower(work, data) as simulation:
        yield simulation.round


def timed(
    work: Workload, ways: Sequence[Way], device: str, repeats: int, say: Callable[[str], None]
) -> list[Peer]:
    """Warm up one by one, then measure in turns; medians, and ratios within a turn."""
    rounds: dict[Way, Round] = {}
    warmup: dict[Way, float] = {}
    notes = {way: f"not installed: pip install {way.install}" for way in ways if way.missing()}
    speeds: dict[Way, list[float]] = {way: [] for way in ways}
    with ExitStack() as open_ones:
        for way in ways:
            if way in notes:
                continue
            say(f"{work.name}: warming up {way.how}")
            start = time.perf_counter()
            try:
                with settings(way.precision):
                    rounds[way] = open_ones.enter_context(way.make())
                    rounds[way](0)
                    rounds[way](1)
                    synchronize(device)
            except (ImportError, PeerFailed) as error:
                rounds.pop(way, None)
                notes[way] = f"did not run: {error}"
                continue
            warmup[way], notes[way] = time.perf_counter() - start, way.versions()
        for turn in range(1, repeats + 1):
            say(f"{work.name}: measuring, turn {turn} of {repeats}")
            for way, one in list(rounds.items()):
                try:
                    with settings(way.precision):
                        speeds[way].append(block(one, device))
                except PeerFailed as error:
                    notes[way] = f"stopped in turn {turn}: {error}"
                    del rounds[way]

    def ratio(way: Way, how: str) -> float | None:
        other = next(one for one in ways if one.how == how)
        pairs = list(zip(speeds[way], speeds[other], strict=False))
        return median(a / b for a, b in pairs) if pairs else None

    return [
        Peer(
            work.name,
            way.how,
            way.precision,
            median(speeds[way]) if speeds[way] else None,
            {how: ratio(way, how) for how in REFERENCES},
            warmup.get(way),
            notes[way],
        )
        for way in ways
    ]


def settings(precision: Precision | None) -> AbstractContextManager[None]:
    """What products may round to: as asked for, or as torch has it."""
    return nullcontext() if precision is None else computing_in(precision)


def version_of(name: str) -> str:
    """The version that is installed."""
    try:
        return version(name)
    except PackageNotFoundError:
        return "from source"
