"""What trains when: a schedule maps clock and number of units to one flag a unit, input side first."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cache
from typing import NamedTuple

from kedge.core.errors import RequestError
from kedge.core.ranges import Count, checked

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


@cache
def exact(ratio: float) -> tuple[int, int]:
    """The ratio as it is written, as a fraction of whole numbers."""
    return Fraction(str(ratio)).as_integer_ratio()


@checked
@dataclass(frozen=True)
class FixLast:
    """The last `count` units never train."""

    count: Count

    def __call__(self, clock: Clock, units: int) -> Mask:
        if units <= self.count:
            raise RequestError(
                f"FixLast(count={self.count}): the model has {units} units, so none would ever train. "
                "Use a model of more units, or a smaller count."
            )
        return tuple(unit < units - self.count for unit in range(units))


@dataclass(frozen=True)
class OnlyLast:
    """The last `count` units train, no other."""

    count: int

    def __call__(self, clock: Clock, units: int) -> Mask:
        return tuple(unit >= units - self.count for unit in range(units))


@dataclass(frozen=True)
class Plain:
    """A function of one's own: (clock, units) → one flag a unit, as any sequence."""

    function: Callable[[Clock, int], Sequence[bool]]

    def __call__(self, clock: Clock, units: int) -> Mask:
        mask = tuple(bool(opened) for opened in self.function(clock, units))
        if len(mask) != units:
            name = getattr(self.function, "__name__", str(self.function))
            raise RequestError(
                f"the schedule {name} gives {len(mask)} flags for a model of {units} units: need one a unit."
            )
        return mask


@dataclass(frozen=True)
class Both:
    """A schedule over a method that has one of its own: a unit trains where both open it."""

    first: Schedule
    second: Schedule

    def __call__(self, clock: Clock, units: int) -> Mask:
        masks = self.first(clock, units), self.second(clock, units)
        for mask in masks:
            if len(mask) != units:
                raise RequestError(
                    f"a schedule gives {len(mask)} flags for a model of {units} units: need one a unit."
                )
        return tuple(a and b for a, b in zip(*masks, strict=True))


def over(base: Schedule, schedule: Schedule) -> Schedule:
    """The schedule laid over a method's own."""
    return schedule if base is all_units else base if schedule is all_units else Both(base, schedule)
