"""What the table of methods compares with FedAvg, and what each may cost at most.

A bound is what the method's mathematics costs: a term or a server rule next to nothing, FedNTD one more
forward pass and MOON two, frozen layers less than nothing. Methods without a bound are shown all the same.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from kedge.algorithms import METHOD_FACTORIES, fedavg, fedbug
from kedge.algorithms.layer_expansion import anti, vanilla
from kedge.algorithms.top_down import top_down
from kedge.core.algorithm import Algorithm
from kedge.core.schedules import Clock, Mask, Schedule

BASE = "fedavg"
BOUNDS = {
    "fedprox": 1.25,
    "feddyn": 1.25,
    "scaffold": 1.25,
    "fedexp": 1.25,
    "fedavgm": 1.25,
    "fedntd": 1.6,
    "moon": 2.2,
}
FROZEN = 1.0  # the bound of schedules that freeze
ARGUMENTS: dict[str, dict[str, Any]] = {"moon": {"projection": 0}}  # the same network as FedAvg's
NEVER = 10**9  # a round that no benchmark comes to


@dataclass(frozen=True)
class Candidate:
    """A row of the table: how to make the method, and its bound if it has one."""

    name: str
    make: Callable[[], Algorithm]
    bound: float | None = None


@dataclass(frozen=True)
class Still:
    """A phase of a schedule that lasts: the same units train in every step."""

    mask: Mask

    def __call__(self, clock: Clock, units: int) -> Mask:
        return self.mask


def candidates(units: int) -> list[Candidate]:
    """FedAvg itself (how far the clock can be trusted), every method, then schedules over FedAvg."""
    others = [name for name in METHOD_FACTORIES if name not in BOUNDS and name != BASE]
    listed = [BASE, *(name for name in BOUNDS if name in METHOD_FACTORIES), *others]
    return [
        *(
            Candidate(name, partial(METHOD_FACTORIES[name], **ARGUMENTS.get(name, {})), BOUNDS.get(name))
            for name in listed
        ),
        Candidate("fedbug+fedavg", lambda: fedbug(fedavg()), FROZEN),
        Candidate("top-down+fedavg", lambda: scheduled(top_down())),
        *phases("vanilla", vanilla, units),
        *phases("anti", anti, units),
    ]


def phases(name: str, schedule: Callable[[tuple[int, ...]], Schedule], units: int) -> list[Candidate]:
    """A row for every phase of a layer expansion, which the thaw holds still while it is measured."""
    base = units - 1
    return [
        Candidate(
            f"{name}, phase {opened} of {base}",
            partial(lambda thaw: scheduled(schedule(thaw)), (0,) * opened + (NEVER,) * (base - opened)),
            FROZEN,
        )
        for opened in range(1, units)
    ]


def scheduled(schedule: Schedule) -> Algorithm:
    """FedAvg under a schedule."""
    return replace(fedavg(), schedule=schedule)
