"""Findings: whether expected and actual values agree, and by how much they differ."""

import math
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from torch import Tensor

from kedge.core.tree import Tree, flatten

SHOWN = 4  # violations in the detail of a finding


class Finding(NamedTuple):
    """The outcome of a check; `error` is None for a property without a number."""

    passed: bool
    error: float | None
    detail: str


class Pair(NamedTuple):
    """A named number: its expected and its actual value."""

    name: str
    expected: float
    actual: float

    @property
    def error(self) -> float:
        """The absolute difference; infinite if one of the two is not a number."""
        difference = abs(self.expected - self.actual)
        return math.inf if math.isnan(difference) else difference


def compare_numbers(pairs: Iterable[Pair], tolerance: float) -> Finding:
    """Compare the two numbers of each pair with the absolute `tolerance`. The detail names the worst pair."""
    pairs = list(pairs)
    worst = max(pairs, key=lambda pair: pair.error)
    return Finding(
        passed=worst.error <= tolerance,
        error=worst.error,
        detail=f"{len(pairs)} values, tolerance {tolerance:.0e}; worst {worst.name}: "
        f"expected {worst.expected:.12g}, got {worst.actual:.12g}",
    )


def compare_trees(expected: Tree, actual: Tree, scale: Tree, tolerance: float) -> Finding:
    """Compare two trees with `tolerance`, relative to the largest number in the tree `scale`."""
    left, right = flatten(expected), flatten(actual)
    if set(left) != set(right):
        return Finding(False, None, f"names differ: {sorted(set(left) ^ set(right))}")
    largest = max(float(v.abs().max()) for v in flatten(scale).values())
    errors = {k: max_difference(left[k], right[k]) / largest for k in left}
    worst = max(errors, key=lambda k: errors[k])
    error = errors[worst]
    detail = f"{len(errors)} tensors, tolerance {tolerance:.0e} of {largest:.3g}; worst {worst}: {error:.1e}"
    return Finding(error <= tolerance, error, detail)


def max_difference(left: Tensor, right: Tensor) -> float:
    """The largest absolute difference of two tensors; infinite if it is not finite."""
    difference = float((left - right).abs().max())
    return difference if math.isfinite(difference) else math.inf


def worst_finding(*findings: Finding) -> Finding:
    """The worst of several findings: the first that failed, or else the one with the largest error."""
    return min(findings, key=lambda finding: (finding.passed, -(finding.error or 0.0)))


def no_violations(scope: str, violations: Sequence[str], word: str = "wrong") -> Finding:
    """Passed if `violations` is empty. The detail says which cases were checked: `scope`."""
    more = f" and {len(violations) - SHOWN} more" if len(violations) > SHOWN else ""
    return Finding(not violations, None, f"{scope}; {word}: {', '.join(violations[:SHOWN]) or 'none'}{more}")
