"""The benchmark of freezing: its programs, its rows, and the command."""

from importlib import import_module
from itertools import combinations
from typing import Any

import pytest
import torch
from tests.cli.command import kedge

from kedge.bench import ratios
from kedge.bench.candidates import FixedMask
from kedge.bench.freezing import PhaseCost, agreements, fastest_engine, phase_costs, programs
from kedge.bench.networks.setting import NETWORKS, Setting
from kedge.bench.ratios import Ratio
from kedge.bench.timing import Timing
from kedge.cli.output import print_message
from kedge.core.errors import RequestError
from kedge.core.schedules import Clock

COMMAND = import_module("kedge.cli.actions.bench")


@pytest.fixture(autouse=True)
def _small_and_short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ratios, "BLOCK_ROUNDS", 1)
    monkeypatch.setitem(NETWORKS, "lenet5", 10)
    monkeypatch.setattr("kedge.cli.actions.bench_plan.STANDARD", "lenet5")
    monkeypatch.setattr(COMMAND, "CLIENTS", 3)


def test_phases_that_train_the_same_units_are_one_program() -> None:
    """Four units: FedBug opens them one by one, the head last; Vanilla and Anti always train the head."""
    found = {"".join("01"[opened] for opened in mask): names for names, mask in programs(4)}
    assert found == {
        "1111": ("fedavg", "fedbug, phase 4 of 4", "vanilla, phase 3 of 3", "anti, phase 3 of 3"),
        "1000": ("fedbug, phase 1 of 4",),
        "1100": ("fedbug, phase 2 of 4",),
        "1110": ("fedbug, phase 3 of 4",),
        "1001": ("vanilla, phase 1 of 3",),
        "1101": ("vanilla, phase 2 of 3",),
        "0011": ("anti, phase 1 of 3",),
        "0111": ("anti, phase 2 of 3",),
    }
    everything = ("fedavg", "fedbug, phase 2 of 2", "vanilla, phase 1 of 1", "anti, phase 1 of 1")
    assert programs(2) == [(everything, (True, True)), (("fedbug, phase 1 of 2",), (True, False))]


def test_a_phase_is_held_still() -> None:
    schedule = FixedMask((True, False))
    assert {schedule(Clock(r, r, s, 9), 2) for r in (0, 10**6) for s in range(9)} == {(True, False)}


def test_bounds_and_agreement() -> None:
    def phase(work: float, middle: float, bound: float | None = 1.0) -> PhaseCost:
        return PhaseCost(("x",), (True,), "fp32", work, Ratio(middle, middle - 0.1, middle + 0.1), bound)

    assert [phase(0.5, m).holds for m in (0.8, 1.0, 1.2)] == ["yes", "open", "no"]
    assert phase(1.0, 1.2, None).holds is None
    rows = [phase(1.0, 1.0), phase(0.5, 0.6), phase(0.7, 0.5), phase(0.7, 0.55)]
    assert agreements(rows) == [("fp32", 3, 5)]  # not the two of equal work; 0.5 is slower than both
    assert agreements(rows[:1]) == [("fp32", 0, 0)]
    assert agreements([]) == []


@pytest.mark.slow
def test_the_command_measures_every_phase() -> None:
    answer = kedge("bench", "freezing", "--no-compile", "--steps", "1", "--repeats", "2", "--json")
    assert answer.code == 0, answer
    rows = answer.json()["freezing"]
    base, *others = rows
    assert base["names"][0] == "fedavg"
    assert len(base["names"]) == 4
    assert base["work"] == 1
    assert base["bound"] is base["holds"] is None
    assert all(0 < row["work"] < 1 and row["bound"] == 1 for row in others)
    assert all(0 < row["time"]["low"] <= row["time"]["middle"] <= row["time"]["high"] for row in rows)
    work = {name: row["work"] for row in rows for name in row["names"]}
    assert len(work) == 1 + 5 + 4 + 4
    # More units are more work: the gradient goes back through every layer above the lowest that trains.
    for name, count in (("fedbug", 5), ("vanilla", 4), ("anti", 4)):
        each = [work[f"{name}, phase {number} of {count}"] for number in range(1, count + 1)]
        assert each == sorted(each)
        assert each[-1] == 1
    assert work["anti, phase 1 of 4"] < work["vanilla, phase 1 of 4"]
    [order] = answer.json()["freezing_agreement"]
    assert order["pairs"] == 55  # of 11 rows, all with different work
    by_work = [row["time"]["middle"] for row in sorted(rows, key=lambda row: row["work"])]
    assert order["agreeing"] == sum(a < b for a, b in combinations(by_work, 2))
    assert answer.json()["packing"] == answer.json()["rows"] == []
    assert "freezing, fp32: measuring, turn 2 of 2" in answer.err


def test_the_command_prints_the_table(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [
        PhaseCost(("fedavg", "anti, phase 2 of 2"), (True, True), "tf32", 1.0, Ratio(1.0, 0.9, 1.1), None),
        PhaseCost(("anti, phase 1 of 2",), (False, True), "tf32", 0.4, Ratio(0.5, 0.4, 0.6), 1.0),
    ]
    received: list[Any] = []

    def fake(*arguments: Any) -> list[PhaseCost]:
        received.extend(arguments)
        return rows

    monkeypatch.setattr(COMMAND, "phase_costs", fake)
    out = kedge("bench", "freezing", "--repeats", "3", "--device", "cpu").out
    assert received == [Setting("lenet5", 3, 2), ["fp32"], Timing("cpu", 3, True, print_message)]
    assert "anti, phase 1 of 2      ○●          0.40×  0.50×  0.40–0.60  1.00×    yes" in out
    assert "Of 1 pairs of rows, the one with fewer multiply-adds is the faster in 1." in out


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.torch.jit:DeprecationWarning")  # raised inside torch's compiler
def test_it_compiles(monkeypatch: pytest.MonkeyPatch) -> None:
    """A network of two units: FedAvg, and FedBug's first phase, which no other schedule has."""
    monkeypatch.setitem(NETWORKS, "mlp", 10)
    rows = phase_costs(Setting("mlp", 2, 1), ["fp32"], Timing("cpu", 1))
    assert [row.names[0] for row in rows] == ["fedavg", "fedbug, phase 1 of 2"]


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_it_captures_on_a_gpu() -> None:
    rows = phase_costs(Setting("lenet5", 2, 4), ["tf32"], Timing("cuda", 1))
    assert len(rows) == 11
    assert all(row.time.middle > 0 for row in rows)


def test_on_a_gpu_it_is_the_captured_engine() -> None:
    setting = Setting("lenet5", 1, 1)
    with pytest.raises(RequestError, match="'captured' needs a CUDA device"):
        fastest_engine(setting.task(setting.federation("cpu"), "fp32"), Timing("cuda"))
