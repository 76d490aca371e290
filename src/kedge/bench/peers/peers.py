"""Speed of pfl-research and Flower's simulation on kedge's work, measured in turns with kedge.

All train the same network from the same weights, on the same arrays, by the same SGD, and average by samples.
Start-up and the first two rounds are not timed. All but kedge run with PyTorch's own settings, by which
convolutions on a GPU may round to tf32. kedge's fp32 does not.
"""

import gc
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from statistics import median
from typing import NamedTuple

import torch

from kedge.bench.cluster_rounds import cluster_rounds
from kedge.bench.engines import LONG_RUN, automatic_choice
from kedge.bench.loops import central, plain_loop
from kedge.bench.peers.flower import PeerFailed, flower
from kedge.bench.peers.pfl import pfl_research
from kedge.bench.rounds import Round, rounds_of
from kedge.bench.timing import Timing, block_speed, median_ratio, warm_up
from kedge.bench.workloads import Workload
from kedge.config.task import Task
from kedge.data.federation import Federation
from kedge.engines.choice.choose import Choice, build
from kedge.nn.precision import Precision, computing_in, in_precision

PLAIN, CENTRAL, PFL, FLOWER = "plain loop", "central", "pfl-research", "Flower"
REFERENCES = (PLAIN, CENTRAL, PFL, FLOWER)


class PeerSpeed(NamedTuple):
    """The speed of one framework; if it did not run, `note` gives the reason."""

    workload: str
    how: str
    precision: Precision | None  # None: PyTorch's own settings
    samples_per_second: float | None
    ratios: dict[str, float | None]  # to each of REFERENCES
    warmup_seconds: float | None
    note: str


class Way(NamedTuple):
    """One way to do the work, with the packages that it needs and the argument of pip that installs them."""

    how: str
    precision: Precision | None
    make: Callable[[], AbstractContextManager[Round]]
    needs: tuple[str, ...] = ()
    install: str = ""

    def missing(self) -> bool:
        """Whether Python does not find one of the packages."""
        return any(find_spec(name) is None for name in self.needs)

    def versions(self) -> str:
        """The packages with their versions."""
        return ", ".join(f"{name} {version_of(name)}" for name in self.needs)


@dataclass
class Measurement:
    """A way and its measurements; `round` is None if it does not run or has failed."""

    way: Way
    round: Round | None = None
    warmup_seconds: float | None = None
    speeds: list[float] = field(default_factory=list)
    note: str = ""

    def start(self, work: Workload, timing: Timing, running: ExitStack) -> None:
        """Make the rounds and warm them up; write a note if that fails."""
        way = self.way
        if way.missing():
            self.note = f"not installed: pip install {way.install}"
            return
        timing.say(f"{work.name}: warming up {way.how}")
        begin = time.perf_counter()
        try:
            with settings(way.precision):
                self.round = warm_up(running.enter_context(way.make()), timing.device)
        except (ImportError, PeerFailed) as error:
            self.note = f"did not run: {error}"
            return
        self.warmup_seconds, self.note = time.perf_counter() - begin, way.versions()

    def time_block(self, turn: int, device: str) -> None:
        """Time a block of rounds, if the way still runs; write a note if it fails."""
        if self.round is None:
            return
        try:
            with settings(self.way.precision):
                self.speeds.append(block_speed(self.round, device))
        except PeerFailed as error:
            self.note, self.round = f"stopped in turn {turn}: {error}", None


def peer_speeds(work: Workload, timing: Timing) -> list[PeerSpeed]:
    """The speeds of kedge, of the other frameworks and of plain loops on one workload."""
    task = work.task(timing.device)
    rows = time_in_turns(work, ways(work, task, timing), timing)
    del task
    gc.collect()
    if timing.on_gpu:
        torch.cuda.empty_cache()
    return rows


def ways(work: Workload, task: Task, timing: Timing) -> list[Way]:
    """All ways to do the workload."""
    data = task.federation
    with computing_in("fp32"):
        auto = automatic_choice(work, task, timing.compiled, streams=0)
    captured = Choice("captured", True, auto.chunk, "asked for")
    rounded: tuple[Precision, ...] = ("tf32", "bf16") if timing.on_gpu and timing.compiled else ()
    choices = {name_of(choice): choice for choice in (*engine_choices(timing, auto.chunk), auto)}
    return [
        Way(PLAIN, None, lambda: nullcontext(plain_loop(work, data))),
        *(
            Way(
                f"{how} (auto)" if choice is auto else how,
                "fp32",
                partial(kedge_rounds, task, choice, "fp32"),
            )
            for how, choice in choices.items()
        ),
        *(
            Way("kedge, captured", precision, partial(kedge_rounds, task, captured, precision))
            for precision in rounded
        ),
        Way(
            "kedge, ray",
            "fp32",
            lambda: cluster_rounds(task, "fp32", LONG_RUN if timing.compiled else 1),
            ("ray",),
            "ray",
        ),
        Way(CENTRAL, None, lambda: nullcontext(central(work, data))),
        Way(PFL, None, lambda: pfl_research(work, data), ("pfl",), "pfl"),
        Way(FLOWER, None, lambda: flower_rounds(work, data), ("flwr", "ray"), "'flwr[simulation]'"),
    ]


def engine_choices(timing: Timing, chunk: int) -> list[Choice]:
    """The engines of one process: sequential, stacked, and the compiled one of this device."""
    choices = [Choice("sequential", False, 0, "asked for"), Choice("stacked", False, chunk, "asked for")]
    if timing.compiled and timing.on_gpu:
        choices.append(Choice("captured", True, chunk, "asked for"))
    elif timing.compiled:
        choices.append(Choice("stacked", True, chunk, "asked for"))
    return choices


def name_of(choice: Choice) -> str:
    """The name of a row of kedge."""
    return f"kedge, {choice.name}" + (", compiled" if choice.compiled and choice.name == "stacked" else "")


def kedge_rounds(task: Task, choice: Choice, precision: Precision) -> AbstractContextManager[Round]:
    """Rounds of kedge on an engine, in a precision."""
    task = replace(task, model=in_precision(task.model, precision), precision=precision)
    return nullcontext(rounds_of(task, build(choice, task.model, task.federation, task.participants)))


@contextmanager
def flower_rounds(work: Workload, data: Federation) -> Iterator[Round]:
    """Rounds of Flower's simulation."""
    with flower(work, data) as simulation:
        yield simulation.round


def time_in_turns(work: Workload, ways: Sequence[Way], timing: Timing) -> list[PeerSpeed]:
    """Warm up one by one, then measure in turns. A way that fails is left out from then on."""
    measurements = [Measurement(way) for way in ways]
    with ExitStack() as running:
        for measurement in measurements:
            measurement.start(work, timing, running)
        for turn in range(1, timing.repeats + 1):
            timing.say(f"{work.name}: measuring, turn {turn} of {timing.repeats}")
            for measurement in measurements:
                measurement.time_block(turn, timing.device)
    return [row(work, measurement, measurements) for measurement in measurements]


def row(work: Workload, measurement: Measurement, measurements: Sequence[Measurement]) -> PeerSpeed:
    """The row of a way, with ratios to the references."""
    references = {how: next(other for other in measurements if other.way.how == how) for how in REFERENCES}
    return PeerSpeed(
        work.name,
        measurement.way.how,
        measurement.way.precision,
        median(measurement.speeds) if measurement.speeds else None,
        {how: median_ratio(measurement.speeds, other.speeds) for how, other in references.items()},
        measurement.warmup_seconds,
        measurement.note,
    )


def settings(precision: Precision | None) -> AbstractContextManager[None]:
    """The settings of a precision; of None, PyTorch's own."""
    return nullcontext() if precision is None else computing_in(precision)


def version_of(name: str) -> str:
    """The installed version of a package."""
    try:
        return version(name)
    except PackageNotFoundError:
        return "from source"
