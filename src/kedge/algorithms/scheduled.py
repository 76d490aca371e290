"""Scheduled: any method under a schedule of one's own, a plain function of the clock and the number of units.

clock.round and clock.step count from 0, clock.steps are the client's local steps of the round; the answer is
one flag a unit, input side first:

    def one_more_a_round(clock, units):
        return [unit <= clock.round for unit in range(units)]

    method = scheduled(feddyn(), one_more_a_round)

A function of a module (no lambda) lets the method pickle.
"""

from collections.abc import Callable, Sequence

from kedge.core.algorithm import Algorithm, with_schedule
from kedge.core.schedules import Clock, Plain


def scheduled(base: Algorithm, function: Callable[[Clock, int], Sequence[bool]]) -> Algorithm:
    """The base method under a schedule of one's own; a unit trains where the base's schedule opens it too."""
    name = f"{getattr(function, '__name__', 'scheduled')}+{base.name}"
    return with_schedule(base, Plain(function), name)
