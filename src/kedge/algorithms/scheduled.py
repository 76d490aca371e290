"""Scheduled: any method under a user's schedule, which is a function of the clock and the number of units.

clock.round and clock.step count from 0; clock.steps is the number of the client's local steps in the round.
The function returns one flag for each unit, from the input side on: does the unit train in this step?

    def one_more_a_round(clock, units):
        return [unit <= clock.round for unit in range(units)]

    method = scheduled(feddyn(), one_more_a_round)

The method can be pickled if the function is defined in a module and is no lambda.
"""

from collections.abc import Callable, Sequence

from kedge.core.algorithm import Algorithm, with_schedule
from kedge.core.schedules import Clock, Plain


def scheduled(base: Algorithm, function: Callable[[Clock, int], Sequence[bool]]) -> Algorithm:
    """The base method under a user's schedule; a unit trains if the base's own schedule opens it, too."""
    name = f"{getattr(function, '__name__', 'scheduled')}+{base.name}"
    return with_schedule(base, Plain(function), name)
