"""Top-down (Kao et al., 2023): gradual unfreezing from the output side, FedBug's comparison.

In local step k = 1…K the last min(M, ⌈k·M / (ratio·K)⌉) units train. It is not in the released code. A
schedule, so it applies to any method.
"""

from kedge.core.schedules import Schedule, TopDown


def top_down(ratio: float = 0.4) -> Schedule:
    """FedBug's schedule from the output side: a unit every (ratio · steps / units) local steps."""
    return TopDown(ratio)
