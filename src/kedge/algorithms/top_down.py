"""Top-down (Kao et al., 2023): gradual unfreezing from the output side; a baseline of FedBug's paper.

In local step k = 1…K the last min(M, ⌈k·M / (ratio·K)⌉) units train. It is not in the released code. It is a
schedule, so it applies to any method.
"""

from dataclasses import dataclass

from kedge.algorithms.fedbug import Ratio, open_units
from kedge.core.ranges import checked
from kedge.core.schedules import Clock, Mask, Schedule


@checked
@dataclass(frozen=True)
class TopDown:
    """In local step k the last min(M, ⌈k·M / (ratio·K)⌉) units train."""

    ratio: Ratio

    def __call__(self, clock: Clock, units: int) -> Mask:
        opened = open_units(self.ratio, clock, units)
        return tuple(unit >= units - opened for unit in range(units))


def top_down(ratio: float = 0.4) -> Schedule:
    """FedBug's schedule from the output side: every (ratio · steps / units) local steps one more unit."""
    return TopDown(ratio)
