"""FedBug (Kao et al., 2023): bottom-up gradual unfreezing inside every round.

In local step k = 1…K the units 1…min(M, ⌈k·M / (ratio·K)⌉) train, counted from the input side; the others
are frozen at the server's values. The released code opens a unit every ⌊ratio·K/M⌋ steps, which is earlier
if the division has a remainder; we follow the paper. FedBug is a schedule, so it applies to any method.
"""

from dataclasses import dataclass
from typing import Annotated

from pydantic import Field

from kedge.core.algorithm import Algorithm, with_schedule
from kedge.core.ranges import checked
from kedge.core.schedules import Clock, Mask, Schedule, exact_fraction

Ratio = Annotated[
    float,
    Field(
        ge=0,
        le=1,
        description="ratio is the share of local steps spent unfreezing; 0 disables it",
    ),
]


def open_units(ratio: float, clock: Clock, units: int) -> int:
    """The number of units that train in this local step: min(M, ⌈k·M / (ratio·K)⌉).

    The ceiling is computed with integers; in floating point it is wrong for M=5, ratio=0.7, K=250, k=35.
    """
    numerator, denominator = exact_fraction(ratio)
    divisor = numerator * clock.steps
    return units if divisor == 0 else min(-(-(clock.step + 1) * units * denominator // divisor), units)


@checked
@dataclass(frozen=True)
class BottomUp:
    """FedBug: in local step k = 1…K the units 1…min(M, ⌈k·M / (ratio·K)⌉) train."""

    ratio: Ratio

    def __call__(self, clock: Clock, units: int) -> Mask:
        opened = open_units(self.ratio, clock, units)
        return tuple(unit < opened for unit in range(units))


def bottom_up(ratio: float = 0.4) -> Schedule:
    """FedBug's schedule: every (ratio · steps / units) local steps one more unit trains."""
    return BottomUp(ratio)


def fedbug(base: Algorithm, ratio: float = 0.4) -> Algorithm:
    """The base method with bottom-up gradual unfreezing."""
    return with_schedule(base, BottomUp(ratio), f"fedbug+{base.name}")
