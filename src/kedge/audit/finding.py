"""Findings: what a check expected, what it got, and by how much they differ."""

import math
from collections.abc import Callable, Iterable
from typing import Literal, NamedTuple, get_args

from torch import Tensor

from kedge.core.tree import Tree, flatten

Kind = Literal["oracle", "reduction", "gradient", "quadratic", "engines", "frozen", "resume", "value"]
KINDS: tuple[Kind, ...] = get_args(Kind)


class Finding(NamedTuple):
    """The outcome of a check."""

    passed: bool
    error: float | None  # the largest, where there is one
    detail: str


class Check(NamedTuple):
    """A property of a method, and the function that looks."""

    method: str
    name: str
    kind: Kind
    look: Callable[[], Finding]


class Row(NamedTuple):
    """A line of the audit's table."""

    method: str
    check: str
    kind: Kind
    passed: bool
    error: float | None
    detail: str


class Pair(NamedTuple):
    """A number, expected and found."""

    what: str
    expected: float
    got: float

    @property
    def error(self) -> float:
        """How far they are apart; infinite where one is not a number."""
        distance = abs(self.expected - self.got)
        return math.inf if math.isnan(distance) else distance


def compared(pairs: Iterable[Pair], tolerance: float) -> Finding:
    """Whether every pair agrees within the tolerance; the worst is named."""
    pairs = list(pairs)
    worst = max(pairs, key=lambda pair: pair.error)
    return Finding(
        passed=worst.error <= tolerance,
        error=worst.error,
        detail=f"{len(pairs)} values, tolerance {tolerance:.0e}; worst {worst.what}: "
        f"expected {worst.expected:.12g}, got {worst.got:.12g}",
    )


def agreed(expected: Tree, got: Tree, scale: Tree, tolerance: float) -> Finding:
    """Whether two trees agree, relative to the largest number of `scale`."""
    left, right = flatten(expected), flatten(got)
    if set(left) != set(right):
        return Finding(False, None, f"names differ: {sorted(set(left) ^ set(right))}")
    largest = max(float(v.abs().max()) for v in flatten(scale).values())
    errors = {k: apart(left[k], right[k]) / largest for k in left}
    worst = max(errors, key=lambda k: errors[k])
    error = errors[worst]
    detail = f"{len(errors)} tensors, tolerance {tolerance:.0e} of {largest:.3g}; worst {worst}: {error:.1e}"
    return Finding(error <= tolerance, error, detail)


def apart(left: Tensor, right: Tensor) -> float:
    """The largest difference of two tensors; infinite where one is not finite."""
    distance = float((left - right).abs().max())
    return distance if math.isfinite(distance) else math.inf


def holds(right: bool, detail: str) -> Finding:
    """A property without a number."""
    return Finding(right, None, detail)


def worst(*findings: Finding) -> Finding:
    """The worst of several findings: the first that fails, else the one with the largest error."""
    return min(findings, key=lambda one: (one.passed, -(one.error or 0.0)))
