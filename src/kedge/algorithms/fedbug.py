"""FedBug (Kao et al., 2023): bottom-up gradual unfreezing inside every round.

In local step k = 1…K the units 1…min(M, ⌈k·M / (ratio·K)⌉) train, counted from the input side; the rest
is frozen at the server's values. The released code uses the period ⌊ratio·K/M⌋, which opens units earlier
when it does not divide; we follow the paper. It is a schedule, so it applies to any method.
"""

from dataclasses import replace

from kedge.core.algorithm import Algorithm
from kedge.core.schedules import BottomUp, Schedule, over


def bottom_up(ratio: float = 0.4) -> Schedule:
    """FedBug's schedule: one more unit from the input side every (ratio · steps / units) local steps."""
    return BottomUp(ratio)


def fedbug(base: Algorithm, ratio: float = 0.4) -> Algorithm:
    """The base method with bottom-up gradual unfreezing."""
    return replace(base, name=f"fedbug+{base.name}", schedule=over(base.schedule, BottomUp(ratio)))
