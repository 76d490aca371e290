"""What trains when: a schedule maps clock and number of units to one flag a unit, input side first."""

from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from typing import NamedTuple

from kedge.core.errors import RequestError

Mask = tuple[bool, ...]


class Clock(NamedTuple):
    """Where a client stands; host integers, counted from 0."""

    round: int  # of the whole run: runs on across stages
    stage_round: int
    step: int
    steps: int  # this client's, this round


Schedule = Callable[[Clock, int], Mask]


def all_units(clock: Clock, units: int) -> Mask:
    """Everything trains, always."""
    return (True,) * units


@dataclass(frozen=True)
class BottomUp:
    """FedBug: in local step k = 1…K the units 1…min(M, ⌈k·M / (ratio·K)⌉) train.

    The ceiling is taken in rational arithmetic; in floating point it errs for M=5, ratio=0.7, K=250, k=35.
    """

    ratio: float

    def __post_init__(self) -> None:
        if not 0 <= self.ratio <= 1:
            raise RequestError(
                f"BottomUp(ratio={self.ratio}): need 0 ≤ ratio ≤ 1. "
                "ratio is the share of local steps spent unfreezing; 0 disables it."
            )

    def __call__(self, clock: Clock, units: int) -> Mask:
        thaw = Fraction(str(self.ratio)) * clock.steps
        opened = units if thaw == 0 else -(-(clock.step + 1) * units // thaw)
        return tuple(unit < opened for unit in range(units))
