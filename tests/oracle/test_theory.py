"""All numbers of the linear laboratory's oracles are compared, and engines freeze the right steps."""

from collections.abc import Iterator
from typing import Any

import pytest
import torch

from kedge.audit.finding import Finding, Pair, compare_numbers
from kedge.audit.oracles.measurements import theory as oracle
from kedge.audit.oracles.measurements.linear_bed import next_round_by_engine
from kedge.measure.theory.linear import (
    MULTIPLICATIVE,
    Point,
    Training,
    next_round,
)


def numbers(entry: Any) -> Iterator[float]:
    """Every number in an oracle's expected values."""
    if isinstance(entry, float | int):
        yield float(entry)
    elif isinstance(entry, dict | list):
        for inner in entry.values() if isinstance(entry, dict) else entry:
            yield from numbers(inner)


@pytest.mark.slow
def test_every_number_of_the_oracles_is_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: set[float] = set()

    def noted(pairs: list[Pair], tolerance: float) -> Finding:
        seen.update(pair.expected for pair in pairs)
        return compare_numbers(pairs, tolerance)

    monkeypatch.setattr(oracle, "compare_numbers", noted)
    for _, _, look in oracle.oracle_checks():
        assert look().passed
    answers = [oracle.FLOW["expected"], oracle.DESCENT["expected"], oracle.NEAR["expected"]]
    answers += [case["expected"] for case in oracle.MANY.values() if isinstance(case, dict)]
    wanted = set(numbers(answers))
    assert len(wanted) > 60
    assert wanted <= seen


def test_the_engines_freeze_as_many_steps_as_the_laboratory() -> None:
    """v moves in forty of fifty steps if ten are frozen. One frozen step more is a different v."""
    start = Point(torch.tensor([0.5, 1.5], dtype=torch.float64), torch.tensor(1.0, dtype=torch.float64))
    ten, eleven = (Training(frozen=s) for s in (10, 11))
    expected = next_round(MULTIPLICATIVE, start, ten)
    for after in next_round_by_engine(MULTIPLICATIVE, start, ten).values():
        assert after.v == pytest.approx(float(expected.v), rel=1e-12)
    for after in next_round_by_engine(MULTIPLICATIVE, start, eleven).values():
        assert abs(float(after.v - expected.v)) > 1e-5
