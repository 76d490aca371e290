"""The cost of diagnostics: the rounds that are compared, and the table."""

from dataclasses import replace
from importlib import import_module
from typing import Any

import pytest
from tests.cli.command import kedge

from kedge.algorithms import feddyn
from kedge.bench import diagnostics
from kedge.bench.diagnostics import Overhead, measured_rounds, overheads, ratio_to_neighbors
from kedge.bench.ratios import Ratio
from kedge.bench.timing import Timing
from kedge.bench.workloads import DIAGNOSTICS
from kedge.measure.local_drift import local_drift
from kedge.measure.updates import Updates

SMALL = replace(DIAGNOSTICS, model="small-cnn", shape=(1, 8, 8), clients=3, per_round=3, samples=10)
COMMAND = import_module("kedge.cli.actions.bench")


def test_the_measured_round_reads_every_number(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every round reads the numbers of the correction and the local drift of the memories."""
    calls: list[str] = []
    measures = Updates.measures

    def record_updates(*arguments: Any) -> Any:
        calls.append("updates")
        return measures(*arguments)

    def record_local_drift(*arguments: Any) -> Any:
        calls.append("local")
        return local_drift(*arguments)

    monkeypatch.setattr(Updates, "measures", record_updates)
    monkeypatch.setattr(diagnostics, "local_drift", record_local_drift)
    round = measured_rounds(SMALL, feddyn(), "cpu")
    assert round(0) == 30
    assert calls == ["updates", "local"]


def test_a_round_that_takes_longer_has_a_ratio_above_one(monkeypatch: pytest.MonkeyPatch) -> None:
    times = iter([1.0, 3.0, 2.0])
    monkeypatch.setattr(diagnostics, "round_seconds", lambda round, number, device: next(times))
    assert ratio_to_neighbors(lambda n: 0, lambda n: 0, "cpu") == 2.0


def test_the_bound_is_of_the_median() -> None:
    assert Overhead("fedavg", Ratio(1.09, 1.0, 1.3), 1.1).holds
    assert not Overhead("fedavg", Ratio(1.11, 1.0, 1.2), 1.1).holds


@pytest.mark.slow
def test_rows_and_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    assert [row.method for row in overheads(SMALL, Timing(repeats=2))] == ["fedavg", "feddyn"]
    monkeypatch.setattr(COMMAND, "DIAGNOSTICS", SMALL)
    answer = kedge("bench", "diagnostics", "--repeats", "2", "--json")
    assert answer.code == 0, answer
    first = answer.json()["diagnostics"][0]
    assert first["bound"] == 1.1
    assert first["ratio"]["low"] <= first["ratio"]["middle"] <= first["ratio"]["high"]
    assert answer.json()["rows"] == []
    assert "measure.drift to without" in kedge("bench", "diagnostics", "--repeats", "1").out
