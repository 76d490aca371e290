"""Measure the time that frozen layers save: a round of each phase of FedBug, Vanilla and Anti beside FedAvg.

The same units train throughout a phase, so each phase is measured with a fixed mask. Phases of different
schedules that train the same units are one program, which is measured once. The last phase of each schedule
is FedAvg itself.
"""

from collections.abc import Sequence
from dataclasses import replace
from itertools import combinations
from typing import NamedTuple

from kedge.algorithms.fedbug import bottom_up
from kedge.algorithms.layer_expansion import anti, vanilla
from kedge.bench.candidates import FREEZING_BOUND, FixedMask, fedavg_with, phase_candidates
from kedge.bench.multiply_adds import multiply_adds
from kedge.bench.networks.setting import BATCH, Setting
from kedge.bench.networks.ways import captured_engine
from kedge.bench.ratios import BASE, Ratio, Verdict, quartiles, ratios_to_base
from kedge.bench.rounds import Round, rounds_of
from kedge.bench.timing import Timing, warm_up
from kedge.config.task import Task
from kedge.core.schedules import Clock, Mask, all_units
from kedge.data.federation import Federation
from kedge.engines.engine import Engine
from kedge.engines.stack.direct import Direct
from kedge.engines.stack.stacked import Stacked
from kedge.nn.precision import Precision, computing_in

CLIENTS = 10
LONG_ROUND = 1000  # local steps; enough for every phase of FedBug


class Program(NamedTuple):
    """The units that train, and the names of the phases that train them."""

    names: tuple[str, ...]
    mask: Mask


class PhaseCost(NamedTuple):
    """A row of the table."""

    names: tuple[str, ...]
    mask: Mask  # one flag for each unit, from input to output
    precision: Precision
    work: float  # multiply-adds relative to FedAvg's
    time: Ratio
    bound: float | None  # of the time; FedAvg has none

    @property
    def holds(self) -> Verdict | None:
        """Whether the bound holds."""
        return None if self.bound is None else self.time.within(self.bound)


class Agreement(NamedTuple):
    """The number of pairs of rows in which less work takes less time."""

    precision: Precision
    agreeing: int
    pairs: int  # of rows with different work


def phase_costs(setting: Setting, precisions: Sequence[Precision], timing: Timing) -> list[PhaseCost]:
    """The costs of all phases in each precision, with FedAvg first."""
    data = setting.federation(timing.device)
    listed = programs(len(setting.task(data, "fp32").model.units))
    one_step = replace(setting.work(), samples=BATCH)
    work = [multiply_adds(one_step, fedavg_with(FixedMask(program.mask))) for program in listed]
    rows: list[PhaseCost] = []
    for precision in precisions:
        turns = measure_turns(setting, data, listed, precision, timing)
        for program, program_work in zip(listed, work, strict=True):
            name = program.names[0]
            time = quartiles([turn[name] for turn in turns])
            bound = None if name == BASE else FREEZING_BOUND
            rows.append(PhaseCost(*program, precision, program_work / work[0], time, bound))
    return rows


def measure_turns(
    setting: Setting, data: Federation, listed: Sequence[Program], precision: Precision, timing: Timing
) -> list[dict[str, float]]:
    """Warm up all programs one by one, then measure them in turns: the ratios of each turn."""
    rounds: dict[str, Round] = {}
    turns = []
    with computing_in(precision):
        for number, (names, mask) in enumerate(listed, 1):
            timing.say(f"freezing, {precision}: warming up {names[0]} ({number} of {len(listed)})")
            task = setting.task(data, precision, fedavg_with(FixedMask(mask)))
            rounds[names[0]] = warm_up(rounds_of(task, fastest_engine(task, timing)), timing.device)
        for number in range(1, timing.repeats + 1):
            timing.say(f"freezing, {precision}: measuring, turn {number} of {timing.repeats}")
            turns.append(ratios_to_base(rounds, timing.device))
    return turns


def programs(units: int) -> list[Program]:
    """FedAvg and every phase of the three schedules; phases that train the same units are one program."""
    start = Clock(0, 0, 0, 1)
    fedbug = dict.fromkeys(bottom_up()(Clock(0, 0, step, LONG_ROUND), units) for step in range(LONG_ROUND))
    expansion = [*phase_candidates("vanilla", vanilla, units), *phase_candidates("anti", anti, units)]
    named: list[tuple[str, Mask]] = [
        (BASE, all_units(start, units)),
        *((f"fedbug, phase {number} of {len(fedbug)}", mask) for number, mask in enumerate(fedbug, 1)),
        *((phase.name, phase.make().schedule(start, units)) for phase in expansion),
    ]
    masks = dict.fromkeys(mask for _, mask in named)
    return [Program(tuple(name for name, named_mask in named if named_mask == mask), mask) for mask in masks]


def fastest_engine(task: Task, timing: Timing) -> Engine:
    """The captured engine on a GPU, otherwise the stacked engine, compiled if `timing.compiled`."""
    if timing.on_gpu:
        return captured_engine(task)
    return Stacked(task.model, task.federation, backend=Direct(timing.compiled, task.model.half))


def agreements(rows: Sequence[PhaseCost]) -> list[Agreement]:
    """Whether time falls with the multiply-adds, for each precision."""
    result = []
    for precision in dict.fromkeys(row.precision for row in rows):
        same_precision = [row for row in rows if row.precision == precision]
        pairs = [(a, b) for a, b in combinations(same_precision, 2) if a.work != b.work]
        agreeing = sum((a.work < b.work) == (a.time.middle < b.time.middle) for a, b in pairs)
        result.append(Agreement(precision, agreeing, len(pairs)))
    return result
