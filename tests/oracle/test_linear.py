"""Wrong variants of the linear laboratory are caught, and all of its oracles' numbers are compared."""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor

from kedge.audit.finding import Finding, Pair, compared
from kedge.audit.oracles.measurements import theory as oracle
from kedge.measure.theory.contraction import mean_cosine, paper_minimum, paper_ratio, predicted_ratio
from kedge.measure.theory.linear import (
    ADDITIVE,
    MULTIPLICATIVE,
    Network,
    Point,
    Training,
    next_round,
    product_minimum,
)

APPENDIX = "additive_bias (appendix model)"
PRINTED = MULTIPLICATIVE._replace(minimum=paper_minimum)
HALF = MULTIPLICATIVE._replace(slopes=lambda n, v: (v / 2, n / 2))


def across(network: Network, point: Point, training: Training) -> Tensor:
    """The angle with the axis of n in place of v's."""
    return predicted_ratio(network, point, training) + (1 - 2 * mean_cosine(network, point)) / 2


def slow(network: Network, point: Point, training: Training) -> Tensor:
    """η for 2η, also with the true gradient."""
    return predicted_ratio(network, point, training._replace(gradient=1))


FAULTS: dict[str, Callable[[], Finding]] = {
    "the minimum as printed": partial(oracle.flow, PRINTED),
    "the true minimum as if printed": partial(oracle.flow_as_printed, product_minimum),
    "the additive network for the other": partial(oracle.flow, ADDITIVE),
    "another gradient": partial(oracle.descent, HALF, 2),
    "another gradient, as printed": partial(oracle.descent, HALF, 1),
    "the angle with the other axis": partial(oracle.near_minimum, MULTIPLICATIVE, across),
    "η for 2η": partial(oracle.near_minimum, MULTIPLICATIVE, slow),
    "two clients' r for m": partial(oracle.many_clients, MULTIPLICATIVE, "multiplicative", paper_ratio),
    "two clients' r for m, additive": partial(oracle.many_clients, ADDITIVE, APPENDIX, paper_ratio),
    "the other network": partial(oracle.many_clients, MULTIPLICATIVE, APPENDIX, predicted_ratio),
    "a pair of the other network": partial(oracle.additive_pair, MULTIPLICATIVE),
}


@pytest.mark.parametrize("name", FAULTS)
def test_a_wrong_variant_is_caught(name: str) -> None:
    finding = FAULTS[name]()
    assert not finding.passed, finding.detail


def numbers(entry: Any) -> Iterator[float]:
    """Every number of an oracle's answer."""
    if isinstance(entry, float | int):
        yield float(entry)
    elif isinstance(entry, dict | list):
        for inner in entry.values() if isinstance(entry, dict) else entry:
            yield from numbers(inner)


def test_every_number_of_the_oracles_is_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: set[float] = set()

    def noted(pairs: list[Pair], tolerance: float) -> Finding:
        seen.update(pair.expected for pair in pairs)
        return compared(pairs, tolerance)

    monkeypatch.setattr(oracle, "compared", noted)
    for _, _, look in oracle.oracles():
        assert look().passed
    answers = [oracle.FLOW["expected"], oracle.DESCENT["expected"], oracle.NEAR["expected"]]
    answers += [case["expected"] for case in oracle.MANY.values() if isinstance(case, dict)]
    wanted = set(numbers(answers))
    assert len(wanted) > 60
    assert wanted <= seen


def test_the_engines_freeze_as_many_steps_as_the_laboratory() -> None:
    """After ten frozen steps of fifty v has moved in forty: one more or less is seen."""
    start = Point(torch.tensor([0.5, 1.5], dtype=torch.float64), torch.tensor(1.0, dtype=torch.float64))
    ten, eleven = (Training(frozen=s) for s in (10, 11))
    expected = next_round(MULTIPLICATIVE, start, ten)
    for after in oracle.by_engines(MULTIPLICATIVE, start, ten).values():
        assert after.v == pytest.approx(float(expected.v), rel=1e-12)
    for after in oracle.by_engines(MULTIPLICATIVE, start, eleven).values():
        assert abs(float(after.v - expected.v)) > 1e-5
