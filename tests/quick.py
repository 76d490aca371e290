"""The cases of a parametrized test that `make check` runs; `make test` runs all of them.

A case with the marker `thorough` repeats a property, which a quick case tests, for one more method, network
or file.
"""

from collections.abc import Iterable
from typing import Any

import pytest

METHODS = frozenset({"fedavg", "scaffold", "fedtr", "fedper", "fedbug+feddyn"})


def cases(values: Iterable[Any], quick: Iterable[Any] = METHODS) -> list[Any]:
    """`values` as cases: those in `quick`, and the others with the marker `thorough`."""
    chosen = list(quick)
    return [case(v, v in chosen) for v in values]


def every(step: int, values: Iterable[Any]) -> list[Any]:
    """`values` as cases: each `step`-th is quick, the others have the marker `thorough`."""
    return [case(v, number % step == 0) for number, v in enumerate(values)]


def case(value: Any, quick: bool) -> Any:
    """A case; a tuple has the values of several parameters."""
    values = value if isinstance(value, tuple) else (value,)
    return pytest.param(*values, marks=() if quick else pytest.mark.thorough)
