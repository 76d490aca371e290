"""What each method costs beside FedAvg: the time of a round as a ratio, stacked, compiled and not.

Blocks of FedAvg stand between the blocks of all others (A B A C A …). A method's ratio is taken to the mean
of the two FedAvg blocks next to it, so that a slow moment of the machine falls on both sides. FedAvg has a
row like any other: how far it is from 1 is the error of the clock.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from statistics import quantiles
from typing import Literal, NamedTuple

from kedge.bench.bench import rounds_of, synchronize
from kedge.bench.candidates import BASE, Candidate
from kedge.bench.loops import Round
from kedge.bench.work import multiply_adds, task_of
from kedge.bench.workloads import Workload
from kedge.core.errors import RequestError
from kedge.engines.direct import Direct
from kedge.engines.stacked import Stacked

BLOCK_ROUNDS = 5
Verdict = Literal["yes", "no", "open"]


class Ratio(NamedTuple):
    """A round's time to FedAvg's: the median of the turns, and their quartiles."""

    middle: float
    low: float
    high: float

    def within(self, bound: float) -> Verdict:
        """Whether a bound holds; open where it lies between the quartiles: another run may differ."""
        if self.high <= bound:
            return "yes"
        return "no" if self.low > bound else "open"


class Cost(NamedTuple):
    """A row of the table."""

    method: str
    work: float | None  # multiply-adds to FedAvg's
    compiled: Ratio | None
    uncompiled: Ratio | None
    bound: float | None  # of the compiled ratio
    reason: str = ""  # why there are no numbers

    @property
    def holds(self) -> Verdict | None:
        """Whether the bound holds."""
        return None if self.bound is None or self.compiled is None else self.compiled.within(self.bound)


class Warm(NamedTuple):
    """A method that is ready to be measured."""

    work: int
    uncompiled: Round
    compiled: Round | None


def method_costs(
    rows: Sequence[Candidate],
    work: Workload,
    device: str = "cpu",
    repeats: int = 7,
    compiled: bool = True,
    say: Callable[[str], None] = lambda message: None,
) -> list[Cost]:
    """The table, FedAvg among its rows: all are warmed up one by one, then measured in turns."""
    ready: dict[str, Warm] = {}
    reasons: dict[str, str] = {}
    for number, row in enumerate(rows, 1):
        say(f"{work.name}: warming up {row.name} ({number} of {len(rows)})")
        try:
            ready[row.name] = warm(row, work, device, compiled)
        except RequestError as error:
            reasons[row.name] = str(error)
    uncompiled = {name: one.uncompiled for name, one in ready.items()}
    programs = {name: one.compiled for name, one in ready.items() if one.compiled}
    eager_turns, compiled_turns = [], []
    for number in range(1, repeats + 1):
        say(f"{work.name}: measuring, turn {number} of {repeats}")
        eager_turns.append(turn(uncompiled, device))
        compiled_turns += [turn(programs, device)] if programs else []
    return [
        Cost(row.name, None, None, None, row.bound, reasons[row.name])
        if row.name in reasons
        else Cost(
            row.name,
            ready[row.name].work / ready[BASE].work,
            summary([one[row.name] for one in compiled_turns]),
            summary([one[row.name] for one in eager_turns]),
            row.bound,
        )
        for row in rows
    ]


def warm(row: Candidate, work: Workload, device: str, compiled: bool) -> Warm:
    """The method after two rounds, which make its programs."""
    task = task_of(work, row.make(), device)
    rounds = [
        warmed(
            rounds_of(task, Stacked(task.model, task.federation, backend=Direct(how, task.model.half))),
            device,
        )
        for how in (False, True)[: 1 + compiled]
    ]
    return Warm(multiply_adds(work, row.make()), rounds[0], rounds[1] if compiled else None)


def warmed(one: Round, device: str) -> Round:
    """Rounds after two of them, which make the programs."""
    one(0)
    one(1)
    synchronize(device)
    return one


def turn(rounds: Mapping[str, Round], device: str) -> dict[str, float]:
    """One turn: the time of every method's block to the mean of the FedAvg blocks before and after it."""
    ratios = {}
    before = block(rounds[BASE], device)
    for name, one in rounds.items():
        own = block(one, device)
        after = block(rounds[BASE], device)
        ratios[name] = 2 * own / (before + after)
        before = after
    return ratios


def block(one: Round, device: str) -> float:
    """Seconds of a round: the fastest of a block, for other processes only ever make one slower."""
    seconds = []
    for number in range(BLOCK_ROUNDS):
        start = time.perf_counter()
        one(number + 2)
        synchronize(device)
        seconds.append(time.perf_counter() - start)
    return min(seconds)


def summary(ratios: Sequence[float]) -> Ratio | None:
    """Median and quartiles, if anything was measured."""
    if not ratios:
        return None
    low, middle, high = quantiles(ratios, n=4, method="inclusive") if len(ratios) > 1 else 3 * [ratios[0]]
    return Ratio(middle, low, high)
