"""Does freezing pay: a round of every phase of FedBug, Vanilla and Anti beside one of FedAvg's.

A phase trains the same units throughout, so each is held still while it is measured. Phases of different
schedules that train the same units are one program and measured once; the last of each is FedAvg's own. Turns
are taken as in methods.py: blocks of FedAvg stand between the blocks of all others.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import combinations
from typing import NamedTuple

from kedge.algorithms.fedbug import bottom_up
from kedge.algorithms.layer_expansion import anti, vanilla
from kedge.bench.bench import rounds_of
from kedge.bench.candidates import BASE, FROZEN, Still, phases, scheduled
from kedge.bench.methods import Ratio, Verdict, summary, turn, warmed
from kedge.bench.networks import BATCH, Setting, replaying
from kedge.bench.work import multiply_adds
from kedge.config.task import Task
from kedge.core.schedules import Clock, Mask, all_units
from kedge.engines.direct import Direct
from kedge.engines.engine import Engine
from kedge.engines.stacked import Stacked
from kedge.nn.precision import Precision, computing_in

CLIENTS = 10
LONG_ROUND = 1000  # local steps in which FedBug goes through all its phases


class Program(NamedTuple):
    """The units that train, and the phases that train them."""

    names: tuple[str, ...]
    mask: Mask


class Phase(NamedTuple):
    """A row of the table."""

    names: tuple[str, ...]
    mask: Mask  # one flag a unit, input side first
    precision: Precision
    work: float  # multiply-adds to FedAvg's
    time: Ratio
    bound: float | None  # of the time; FedAvg itself has none: how far it is from 1 is the clock's error

    @property
    def holds(self) -> Verdict | None:
        """Whether the bound holds."""
        return None if self.bound is None else self.time.within(self.bound)


class Agreement(NamedTuple):
    """In how many pairs of rows, of different work, the one with fewer multiply-adds is also the faster."""

    precision: Precision
    agreeing: int
    pairs: int


def freezing(
    setting: Setting,
    precisions: Sequence[Precision],
    device: str = "cpu",
    repeats: int = 7,
    compiled: bool = True,
    say: Callable[[str], None] = lambda message: None,
) -> list[Phase]:
    """The table, FedAvg first: all programs of a precision are warmed up one by one, then timed in turns."""
    data = setting.federation(device)
    listed = programs(len(setting.task(data, "fp32").model.units))
    one_step = replace(setting.work(), samples=BATCH)
    counted = [multiply_adds(one_step, scheduled(Still(mask))) for _, mask in listed]
    rows: list[Phase] = []
    for precision in precisions:
        with computing_in(precision):
            ready = {}
            for number, (names, mask) in enumerate(listed, 1):
                say(f"freezing, {precision}: warming up {names[0]} ({number} of {len(listed)})")
                task = setting.task(data, precision, scheduled(Still(mask)))
                ready[names[0]] = warmed(rounds_of(task, fastest(task, device, compiled)), device)
            turns = []
            for number in range(1, repeats + 1):
                say(f"freezing, {precision}: measuring, turn {number} of {repeats}")
                turns.append(turn(ready, device))
        for (names, mask), own in zip(listed, counted, strict=True):
            time = summary([one[names[0]] for one in turns])
            assert time is not None
            bound = None if names[0] == BASE else FROZEN
            rows.append(Phase(names, mask, precision, own / counted[0], time, bound))
    return rows


def programs(units: int) -> list[Program]:
    """FedAvg and every phase of the three schedules, those that train the same units together."""
    bug = dict.fromkeys(bottom_up()(Clock(0, 0, step, LONG_ROUND), units) for step in range(LONG_ROUND))
    start = Clock(0, 0, 0, 1)
    named: list[tuple[str, Mask]] = [
        (BASE, all_units(start, units)),
        *((f"fedbug, phase {number} of {len(bug)}", mask) for number, mask in enumerate(bug, 1)),
        *(
            (row.name, row.make().schedule(start, units))
            for row in (*phases("vanilla", vanilla, units), *phases("anti", anti, units))
        ),
    ]
    masks = dict.fromkeys(mask for _, mask in named)
    return [Program(tuple(name for name, own in named if own == mask), mask) for mask in masks]


def fastest(task: Task, device: str, compiled: bool) -> Engine:
    """On a GPU captured graphs; else a stack, compiled if asked for."""
    if device == "cuda":
        return replaying(task)
    return Stacked(task.model, task.federation, backend=Direct(compiled, task.model.half))


def agreements(rows: Sequence[Phase]) -> list[Agreement]:
    """Whether time falls with the multiply-adds, precision by precision."""
    found = []
    for precision in dict.fromkeys(row.precision for row in rows):
        some = [row for row in rows if row.precision == precision]
        pairs = [(a, b) for a, b in combinations(some, 2) if a.work != b.work]
        agreeing = sum((a.work < b.work) == (a.time.middle < b.time.middle) for a, b in pairs)
        found.append(Agreement(precision, agreeing, len(pairs)))
    return found
