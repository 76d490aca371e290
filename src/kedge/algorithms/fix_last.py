"""Fix-last (Kao et al., 2023): the classifier keeps its random initial weights; a baseline of FedBug's paper.

With one unit it is FedBABU without fine-tuning. With two units it freezes fc2 and fc3 of the standard CNN. It
is a schedule, so it applies to any method.
"""

from kedge.core.schedules import FixLast, Schedule


def fix_last() -> Schedule:
    """The last unit never trains."""
    return FixLast(1)


def fix_last_two() -> Schedule:
    """The last two units never train."""
    return FixLast(2)
