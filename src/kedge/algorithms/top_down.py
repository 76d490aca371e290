"""Top-down (Kao et al., 2023): gradual unfreezing from the output side, FedBug's comparison.

In local step k = 1…K the last min(M, ⌈k·M / (ratio·K)⌉) units train. It is not in the released code. A
schedule, so it applies to any method.
"""

from dataclasses import dataclass

from kedge.algorithms.fedbug import BottomUp
from kedge.core.schedules import Clock, Mask, Schedule


@dataclass(frozen=True)
class TopDown:
    """BottomUp from the output side: in local step k the last min(M, ⌈k·M / (ratio·K)⌉) units train."""

    ratio: float

    def __post_init__(self) -> None:
        BottomUp(self.ratio)  # the same ratios are allowed

    def __call__(self, clock: Clock, units: int) -> Mask:
        return BottomUp(self.ratio)(clock, units)[::-1]


def top_down(ratio: float = 0.4) -> Schedule:
    """FedBug's schedule from the output side: a unit every (ratio · steps / units) local steps."""
    return TopDown(ratio)
