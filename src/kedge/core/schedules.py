"""What trains when: a schedule maps clock and number of units to one flag a unit, input side first."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cache
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


@cache
def exact(ratio: float) -> tuple[int, int]:
    """The ratio as it is written, as a fraction of whole numbers."""
    return Fraction(str(ratio)).as_integer_ratio()


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
        share, whole = exact(self.ratio)
        thaw = share * clock.steps
        opened = units if thaw == 0 else -(-(clock.step + 1) * units * whole // thaw)
        return tuple(unit < opened for unit in range(units))


@dataclass(frozen=True)
class TopDown:
    """BottomUp from the output side: in local step k the last min(M, ⌈k·M / (ratio·K)⌉) units train."""

    ratio: float

    def __post_init__(self) -> None:
        BottomUp(self.ratio)  # the same ratios are allowed

    def __call__(self, clock: Clock, units: int) -> Mask:
        return BottomUp(self.ratio)(clock, units)[::-1]


@dataclass(frozen=True)
class FixLast:
    """The last `count` units never train."""

    count: int

    def __post_init__(self) -> None:
        if self.count < 1:
            raise RequestError(f"FixLast(count={self.count}): need a whole number of at least 1.")

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
class HeadThenBody:
    """The last `count` units train in the first `share` of a client's local steps, the others in the rest.

    The number of steps is rounded to the nearest; each has at least one. A single step trains the body.
    """

    share: float
    count: int = 1

    def __post_init__(self) -> None:
        if not 0 < self.share < 1:
            raise RequestError(
                f"head_share = {self.share}: need 0 < head_share < 1, the share of local steps on the head."
            )

    def __call__(self, clock: Clock, units: int) -> Mask:
        share, whole = exact(self.share)
        nearest = max((2 * share * clock.steps + whole) // (2 * whole), 1)
        steps = min(nearest, clock.steps - 1)
        return tuple((unit >= units - self.count) == (clock.step < steps) for unit in range(units))


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


@dataclass(frozen=True)
class Thaw:
    """The k-th base unit trains from round thaw[k] on, rounds counted from 1; the head (last unit) always.

    Base units are counted from the input side, or from_top from the head's side. Open means round ≥ thaw[k],
    strict round > thaw[k].
    """

    thaw: tuple[int, ...]
    from_top: bool = False
    strict: bool = False

    def __post_init__(self) -> None:
        if not self.thaw or list(self.thaw) != sorted(self.thaw) or self.thaw[0] < 0:
            raise RequestError(
                f"thaw = {list(self.thaw)}: need one round per base unit, from 0 on, in ascending order."
            )

    def __call__(self, clock: Clock, units: int) -> Mask:
        if len(self.thaw) != units - 1:
            raise RequestError(
                f"thaw = {list(self.thaw)}: {len(self.thaw)} rounds, but the model has {units - 1} base "
                f"units ({units} units, the last of which is the head). Give one round per base unit."
            )
        now = clock.round + 1
        base = tuple(now > first if self.strict else now >= first for first in self.thaw)
        return (*(base[::-1] if self.from_top else base), True)
