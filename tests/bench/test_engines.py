"""The table of engines, and the loops that it compares with."""

import copy
from dataclasses import replace

import pytest
import torch
from tests.cli.command import kedge

from kedge.bench import engines, timing
from kedge.bench.engines import engine_speeds
from kedge.bench.loops import central, plain_loop
from kedge.bench.rounds import rounds_of
from kedge.bench.timing import Timing
from kedge.bench.workloads import OVERHEAD, Workload
from kedge.engines.sequential import Sequential

ONE_PROCESS = {"plain loop", "sequential", "stacked", "central"}
SMALL = replace(OVERHEAD, name="small", clients=6, per_round=3, compiled=False)


def test_rows_are_ratios_within_one_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timing, "BLOCK_SECONDS", 0.01)
    monkeypatch.setattr(engines, "has_ray", lambda: False)
    rows = {row.how.removesuffix(" (auto)"): row for row in engine_speeds(SMALL, Timing(repeats=2))}
    assert set(rows) == ONE_PROCESS
    assert rows["plain loop"].to_plain == 1
    assert rows["central"].to_central == 1
    assert all(row.samples_per_second > 0 and row.warmup_seconds > 0 for row in rows.values())


def test_the_plain_loop_is_the_sequential_engine_s_mathematics(monkeypatch: pytest.MonkeyPatch) -> None:
    """With one client and one full batch the order of samples makes no difference."""
    one = replace(SMALL, clients=1, per_round=1, samples=10)
    torch.manual_seed(0)
    start = one.module()
    monkeypatch.setattr(Workload, "module", lambda self: copy.deepcopy(start))
    task = one.task("cpu")
    assert (
        plain_loop(one, task.federation)(0)
        == rounds_of(task, Sequential(task.model, task.federation))(0)
        == 10
    )
    assert central(one, task.federation)(0) == 10


@pytest.mark.slow
def test_the_command_prints_a_table_and_json(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("ray")
    monkeypatch.setattr(timing, "BLOCK_SECONDS", 0.01)
    answer = kedge("bench", "overhead", "--no-compile", "--repeats", "1", "--json")
    assert answer.code == 0
    assert {row["how"].removesuffix(" (auto)") for row in answer.json()["rows"]} == {*ONE_PROCESS, "ray"}
    monkeypatch.setattr(engines, "has_ray", lambda: False)
    assert "to plain loop" in kedge("bench", "overhead", "--no-compile", "--repeats", "1").out


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_it_captures_on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timing, "BLOCK_SECONDS", 0.01)
    rows = {row.how.removesuffix(" (auto)") for row in engine_speeds(SMALL, Timing("cuda", 2))}
    assert rows - {"ray"} == {*ONE_PROCESS, "captured"}
