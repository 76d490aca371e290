"""Schedules: functions of a clock and the number of units that return one flag for each unit.

The flag says whether the unit trains in this step. Units are ordered from the input side to the head.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cache
from typing import NamedTuple

from kedge.core.errors import RequestError
from kedge.core.ranges import Count, checked

Mask = tuple[bool, ...]


class Clock(NamedTuple):
    """A client's position in a run, as Python integers from 0."""

    round: int  # of the run
    stage_round: int  # of the stage
    step: int  # of the round
    steps: int  # number of the client's steps in this round


Schedule = Callable[[Clock, int], Mask]


def all_units(clock: Clock, units: int) -> Mask:
    """Every unit trains in every step."""
    return (True,) * units


@cache
def exact_fraction(ratio: float) -> tuple[int, int]:
    """The decimal number `ratio` as an exact fraction: (numerator, denominator)."""
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
    """Only the last `count` units train."""

    count: int

    def __call__(self, clock: Clock, units: int) -> Mask:
        return tuple(unit >= units - self.count for unit in range(units))


@dataclass(frozen=True)
class Plain:
    """A user's function as a schedule; its sequence of flags becomes a tuple of bools of checked length."""

    function: Callable[[Clock, int], Sequence[bool]]

    def __call__(self, clock: Clock, units: int) -> Mask:
        mask = tuple(bool(opened) for opened in self.function(clock, units))
        if len(mask) != units:
            name = getattr(self.function, "__name__", str(self.function))
            raise RequestError(
                f"the schedule {name} returns {len(mask)} flags for a model of {units} units: need one flag "
                "for each unit."
            )
        return mask


@dataclass(frozen=True)
class Both:
    """The intersection of two schedules: a unit trains in the steps in which both open it."""

    first: Schedule
    second: Schedule

    def __call__(self, clock: Clock, units: int) -> Mask:
        masks = self.first(clock, units), self.second(clock, units)
        for mask in masks:
            if len(mask) != units:
                raise RequestError(
                    f"a schedule returns {len(mask)} flags for a model of {units} units: need one flag for "
                    "each unit."
                )
        return tuple(a and b for a, b in zip(*masks, strict=True))


def combined(base: Schedule, schedule: Schedule) -> Schedule:
    """The intersection of two schedules; `all_units` changes nothing."""
    return schedule if base is all_units else base if schedule is all_units else Both(base, schedule)
