"""The benchmark of packing: runs that train side by side, their times, and the command."""

from collections.abc import Sequence
from importlib import import_module
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from tests.cli.command import kedge

from kedge.bench import packing
from kedge.bench.networks.setting import NETWORKS, Setting
from kedge.bench.packing import PackSpeed, TimedRun, distance, pack_speeds, run_alone, run_packed, stack
from kedge.bench.rounds import Run, train_round
from kedge.bench.timing import Timing
from kedge.core.errors import RequestError
from kedge.core.server import Reply
from kedge.engines.engine import Rounds
from kedge.engines.pack.joint_planner import PendingRound
from kedge.engines.pack.pack import Pack
from kedge.engines.stack.stacked import Stacked

COMMAND = import_module("kedge.cli.actions.bench")


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(NETWORKS, "lenet5", 10)
    monkeypatch.setattr("kedge.cli.actions.bench_plan.STANDARD", "lenet5")


@pytest.fixture
def widths(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The number of runs that train side by side in each round."""
    counts: list[int] = []
    original = Pack.train_side_by_side

    def train_side_by_side(self: Pack, rounds: Sequence[PendingRound]) -> list[Reply]:
        counts.append(len(rounds))
        return original(self, rounds)

    monkeypatch.setattr(Pack, "train_side_by_side", train_side_by_side)
    return counts


@pytest.mark.slow
def test_the_command_compares_runs_alone_and_packed(widths: list[int]) -> None:
    answer = kedge("bench", "packing", "--runs", "3", "--steps", "2", "--repeats", "2", "--json")
    assert answer.code == 0, answer
    [row] = answer.json()["packing"]
    assert widths == [3] * 4  # two rounds of warm-up and two timed rounds
    assert (row["precision"], row["runs"], row["streams"], row["rounds"]) == ("fp32", 3, 1, 4)
    assert row["alone"] > 0
    assert row["ratio"] == pytest.approx(row["packed"] / row["alone"])
    assert 0 <= row["difference"] < 1e-5
    assert answer.json()["freezing"] == answer.json()["freezing_agreement"] == answer.json()["rows"] == []


@pytest.mark.slow
def test_packed_runs_are_the_runs_alone_and_differ_from_each_other() -> None:
    setting = Setting("lenet5", 1, 2)
    data = setting.federation("cpu")
    tasks = [setting.task(data, "fp64", seed=seed) for seed in range(2)]
    packed = run_packed(tasks, 3, "cpu")
    alone = [run_alone(task, 3, "cpu") for task in tasks]
    assert all(distance(a.weights, b.weights) < 1e-12 for a, b in zip(packed, alone, strict=True))
    assert distance(packed[0].weights, packed[1].weights) > 0.1
    start = tasks[0].model.init(0)[0]
    assert distance(packed[0].weights, {k: v.double() for k, v in start.items()}) > 1e-5
    assert [len(run.seconds) for run in packed] == [0, 1]  # only the last run of a pack is timed
    assert [len(run.seconds) for run in alone] == [1, 1]


def test_speeds_are_medians_of_rounds_after_the_warm_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """Stamps at 10, 20, 21, 23 and 30 s: the rounds after the second took 1, 2 and 7 s."""
    stamps = iter([10.0, 20.0, 21.0, 23.0, 30.0])
    monkeypatch.setattr(packing, "time", SimpleNamespace(perf_counter=lambda: next(stamps)))
    setting = Setting("lenet5", 1, 1)
    task = setting.task(setting.federation("cpu"), "fp32")
    assert run_alone(task, 5, "cpu").seconds == [1, 2, 7]


def test_the_ratio_is_of_all_runs_to_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """Four runs of 50 samples a round: 2 s a round alone, 4 s packed."""
    weights = {"w": torch.tensor([2.0, -4.0])}
    moved = {"w": torch.tensor([2.0, -4.1])}
    monkeypatch.setattr(packing, "run_alone", lambda *arguments: TimedRun([2.0, 2.0, 9.0], weights))
    ended = [*3 * [TimedRun([], moved)], TimedRun([4.0], weights)]
    monkeypatch.setattr(packing, "run_packed", lambda *arguments: ended)
    [row] = pack_speeds(Setting("lenet5", 1, 1), ["fp32"], Timing())
    assert (row.alone, row.packed, row.ratio) == (25, 50, 2)
    assert row.difference == pytest.approx(0.1 / 4)


def test_packed_runs_have_the_streams_and_those_alone_have_one(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[int] = []

    def captured(model: Any, data: Any, participants: Any, streams: int) -> Stacked:
        made.append(streams)
        return Stacked(model, data)

    monkeypatch.setattr(packing, "captured_stack", captured)
    monkeypatch.setattr(packing, "synchronize", lambda device: None)
    setting = Setting("lenet5", 1, 1)
    data = setting.federation("cpu")
    monkeypatch.setattr(Setting, "federation", lambda self, device: data)
    said: list[str] = []
    rows = pack_speeds(setting, ["fp32"], Timing("cuda", 1, say=said.append), 2, (1, 2, 3, 4))
    assert [row.streams for row in rows] == [1, 2]  # numbers that divide the two rows
    assert made == [1, *3 * [1], *3 * [2], 1]  # a run alone; twice two runs and their stack; a run alone
    assert all(row.difference < 1e-5 and row.ratio == row.packed / row.alone for row in rows)
    assert rows[0].alone == rows[1].alone
    assert "packing, fp32: 2 runs packed, 2 streams" in said


def test_a_run_that_fails_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    def failing_round(run: Run, number: int) -> Rounds[int]:
        if run.task.seed == 1:
            raise RuntimeError("as if")
        return (yield from train_round(run, number))

    monkeypatch.setattr(packing, "train_round", failing_round)
    setting = Setting("lenet5", 1, 1)
    data = setting.federation("cpu")
    with pytest.raises(RuntimeError, match="as if"):
        run_packed([setting.task(data, "fp32", seed=seed) for seed in range(3)], 2, "cpu")


def test_the_command_prints_the_table(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [PackSpeed("fp32", 4, 1, 9, 1000.0, 3500.0, 3.5, 2e-6)]
    monkeypatch.setattr(COMMAND, "pack_speeds", lambda *arguments: rows)
    out = kedge("bench", "packing", "--device", "cpu").out
    assert "packing: runs of one client a round, local steps 2, batch 50, lenet5 on 3×32×32" in out
    assert "fp32     4             1,000              3,500  3.50×       9     2.0e-06" in out
    rows.append(rows[0]._replace(streams=2, packed=3800.0, ratio=3.8))
    out = kedge("bench", "packing", "--device", "cpu").out
    assert "fp32     4        1             1,000              3,500  3.50×       9     2.0e-06" in out
    assert "fp32     4        2             1,000              3,800  3.80×       9     2.0e-06" in out


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("packing", "--runs", "1"), "--runs 1: need at least 2"),
        (("packing", "--precisions", "tf32", "--device", "cpu"), "allowed here: fp64, fp32, bf16"),
        (("freezing", "--steps", "-1"), "--steps -1: need at least 1"),
        (("packing", "--streams", "2", "--device", "cpu"), "--streams 2: more than 1 needs a CUDA device"),
        (("packing", "--streams", "1,two"), "--streams two: need whole numbers of at least 1"),
        (("packin",), "Did you mean 'packing'"),
        (("frost",), "Allowed: overhead, compute, networks, methods, freezing, packing, diagnostics, fed"),
    ],
)
def test_wrong_requests(words: tuple[str, ...], said: str) -> None:
    answer = kedge("bench", *words)
    assert answer.code == 2
    assert said in answer.err


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_it_captures_on_a_gpu(widths: list[int]) -> None:
    """Tolerance: tf32 rounds products to 1e-3, and other kernels may sum them in another order."""
    rows = pack_speeds(Setting("lenet5", 1, 4), ["tf32"], Timing("cuda", 2), 4, (1, 2, 4))
    assert widths == [4] * 12
    assert [row.streams for row in rows] == [1, 2, 4]
    assert all(row.difference < 1e-3 for row in rows)


def test_on_a_gpu_it_is_the_captured_engine() -> None:
    setting = Setting("lenet5", 1, 1)
    data = setting.federation("cpu")
    with pytest.raises(RequestError, match="'captured' needs a CUDA device"):
        stack(setting.task(data, "fp32").model, data, "cuda")
