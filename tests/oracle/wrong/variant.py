"""Wrong variants: a method with other corrections, and tables of the checks that must catch them."""

from collections.abc import Callable
from dataclasses import replace

from kedge.audit.finding import Finding
from kedge.core.algorithm import Algorithm
from kedge.core.correction import Correction

Checks = dict[str, Callable[[], Finding]]  # by the name of the variant


def with_corrections(base: Algorithm, *corrections: Correction) -> Algorithm:
    """`base` with `corrections` instead of its own."""
    return replace(base, corrections=corrections)
