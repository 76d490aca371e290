"""The methods that are compared with FedAvg, each with the bound of its time.

A bound is the cost of the method's mathematics: little for a term or a server rule, one more forward pass for
FedNTD, two for MOON, and less than FedAvg for frozen layers. Some methods have no bound.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from kedge.algorithms import METHOD_FACTORIES, fedavg, fedbug
from kedge.algorithms.layer_expansion import anti, vanilla
from kedge.algorithms.top_down import top_down
from kedge.bench.ratios import BASE
from kedge.core.algorithm import Algorithm
from kedge.core.schedules import Clock, Mask, Schedule

BOUNDS = {
    "fedprox": 1.25,
    "feddyn": 1.25,
    "scaffold": 1.25,
    "fedexp": 1.25,
    "fedavgm": 1.25,
    "fedntd": 1.6,
    "moon": 2.2,
}
FREEZING_BOUND = 1.0  # of schedules that freeze layers
ARGUMENTS: dict[str, dict[str, Any]] = {"moon": {"projection": 0}}  # the same network as FedAvg's
NEVER = 10**9  # a round that no benchmark reaches


@dataclass(frozen=True)
class Candidate:
    """A row of the table: a factory of the method, and its bound, if any."""

    name: str
    make: Callable[[], Algorithm]
    bound: float | None = None


@dataclass(frozen=True)
class FixedMask:
    """A schedule of one phase: the same units train in every step."""

    mask: Mask

    def __call__(self, clock: Clock, units: int) -> Mask:
        return self.mask


def candidates(units: int) -> list[Candidate]:
    """FedAvg, every method, and schedules of a network with `units` units."""
    others = [name for name in METHOD_FACTORIES if name not in BOUNDS and name != BASE]
    names = [BASE, *(name for name in BOUNDS if name in METHOD_FACTORIES), *others]
    return [
        *(
            Candidate(name, partial(METHOD_FACTORIES[name], **ARGUMENTS.get(name, {})), BOUNDS.get(name))
            for name in names
        ),
        Candidate("fedbug+fedavg", lambda: fedbug(fedavg()), FREEZING_BOUND),
        Candidate("top-down+fedavg", lambda: fedavg_with(top_down())),
        *phase_candidates("vanilla", vanilla, units),
        *phase_candidates("anti", anti, units),
    ]


def phase_candidates(
    name: str, schedule: Callable[[tuple[int, ...]], Schedule], units: int
) -> list[Candidate]:
    """The phases of Vanilla or Anti, each as a schedule that never leaves its phase."""
    phases = units - 1
    thaws = {opened: (0,) * opened + (NEVER,) * (phases - opened) for opened in range(1, units)}
    return [
        Candidate(
            f"{name}, phase {opened} of {phases}",
            partial(lambda thaw: fedavg_with(schedule(thaw)), thaw),
            FREEZING_BOUND,
        )
        for opened, thaw in thaws.items()
    ]


def fedavg_with(schedule: Schedule) -> Algorithm:
    """FedAvg with a schedule."""
    return replace(fedavg(), schedule=schedule)
