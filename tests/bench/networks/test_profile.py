"""Profiles of rounds: their kernels and operators, and the tables."""

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from tests.cli.command import kedge
from torch._C._autograd import DeviceType

from kedge.bench.networks.profile import BETWEEN, Kernel, Profile, entries, largest, profile_round
from kedge.bench.networks.setting import NETWORKS, Setting
from kedge.bench.networks.speeds import NetworkBench, NetworkSpeed
from kedge.bench.networks.ways import stacked_engine
from kedge.bench.rounds import rounds_of


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(NETWORKS, "lenet5", 10)


def no_speeds(bench: NetworkBench) -> Iterator[list[NetworkSpeed]]:
    yield from ()


def test_operators_are_counted_by_local_step() -> None:
    """Five steps with three large products each, which take most of the time."""
    a = torch.randn(400, 400)

    def round(number: int) -> int:
        for _ in range(15):
            a @ a
        return 0

    first, *others = profile_round(round, "cpu", 5)
    assert (first.name, first.calls) == ("aten::mm", 3)
    assert first.share > 0.5
    assert first.share == pytest.approx(
        first.microseconds / (first.microseconds + sum(t.microseconds for t in others))
    )
    assert BETWEEN in {one.name for one in others}


def test_a_round_of_a_network() -> None:
    setting = Setting("lenet5", 2, 2)
    task = setting.task(setting.federation("cpu"), "fp32")
    round = rounds_of(task, stacked_engine(task))
    round(0)
    found = profile_round(round, "cpu", setting.steps)
    assert len(found) == 13
    assert found[-1].name.startswith("everything else (")
    assert sum(one.share for one in found) == pytest.approx(1, abs=1e-12)
    assert all(one.calls > 0 and one.microseconds > 0 for one in found)
    times = [one.microseconds for one in found[:-1]]
    assert times == sorted(times, reverse=True)


def test_the_rest_is_one_entry() -> None:
    found = [(f"k{n}", n, 10.0 * n) for n in range(1, 16)]
    kernels = largest(found, 10)
    assert kernels[0] == Kernel("k15", 1.5, 15.0, 150 / 1200)
    assert kernels[-1] == Kernel("everything else (3)", 0.6, 6.0, 60 / 1200)
    assert len(kernels) == 13
    assert [one.name for one in largest(found[:12], 10)] == [f"k{n}" for n in range(12, 0, -1)]
    assert largest([], 10) == []


def test_on_a_gpu_only_kernels_count() -> None:
    """Launches run on the CPU, and the time of named ranges is the time of their kernels."""

    def event(kind: DeviceType, named: bool, taken: float) -> Any:
        return SimpleNamespace(
            key="k", count=2, device_type=kind, is_user_annotation=named,
            device_time_total=taken, self_cpu_time_total=7.0,
        )  # fmt: skip

    gpu, cpu = DeviceType.CUDA, DeviceType.CPU
    assert entries(event(gpu, False, 3.0), "cuda") == [("k", 2, 3.0)]
    assert entries(event(gpu, True, 3.0), "cuda") == []
    assert entries(event(cpu, False, 3.0), "cuda") == []
    assert entries(event(gpu, False, 0.0), "cuda") == []
    assert entries(event(cpu, False, 0.0), "cpu") == [("k", 2, 7.0)]


@pytest.mark.slow
def test_the_command_profiles_every_way() -> None:
    words = ("bench", "networks", "--networks", "lenet5", "--clients", "2", "--steps", "2", "--repeats", "1")
    answer = kedge(*words, "--device", "cpu", "--profile", "--json")
    assert answer.code == 0, answer
    document = answer.json()
    hows = ["plain loop", "stacked", "central, compiled"]
    assert [row["how"] for row in document["networks"]] == hows
    assert [row["streams"] for row in document["networks"]] == [None] * 3
    assert [one["how"] for one in document["profiles"]] == hows
    for one in document["profiles"]:
        assert list(one) == ["network", "clients", "how", "precision", "steps", "kernels"]
        assert (one["network"], one["clients"], one["precision"], one["steps"]) == ("lenet5", 2, "fp32", 2)
        assert list(one["kernels"][0]) == ["name", "calls", "microseconds", "share"]
        assert sum(kernel["share"] for kernel in one["kernels"]) == pytest.approx(1, abs=1e-12)
        assert all(kernel["calls"] > 0 for kernel in one["kernels"])
    assert answer.err.index("measuring, turn 1 of 1") < answer.err.index("profiling plain loop, fp32")


def test_the_command_prints_tables(monkeypatch: pytest.MonkeyPatch) -> None:
    long = "triton_poi_fused_" + 20 * "convolution_[x]"
    kernels = [Kernel(long, 2.0, 1234.56, 0.75), Kernel("everything else (3)", 0.5, 411.5, 0.25)]

    def profiles(bench: NetworkBench) -> Iterator[Profile]:
        assert bench.streams == [1]
        yield Profile("lenet5", 10, "captured, 2 streams", "tf32", 100, kernels)
        yield Profile("lenet5", 10, "stacked", "fp32", 100, [])

    monkeypatch.setattr(NetworkBench, "speeds", no_speeds)
    monkeypatch.setattr(NetworkBench, "profiles", profiles)
    out = kedge("bench", "networks", "--device", "cpu", "--profile").out
    assert "profile: lenet5, 10 clients, captured, 2 streams, tf32: 1,646 µs a local step" in out
    assert f"{long[:99]}…    2.0  1,234.6  75.0%" in out
    assert "0.5    411.5  25.0%" in out
    assert "The profiler recorded no kernels." in out


def test_without_it_nothing_is_profiled(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(bench: NetworkBench) -> Iterator[Profile]:
        raise AssertionError

    monkeypatch.setattr(NetworkBench, "speeds", no_speeds)
    monkeypatch.setattr(NetworkBench, "profiles", fail)
    answer = kedge("bench", "networks", "--device", "cpu", "--json")
    assert answer.code == 0, answer
    assert answer.json()["profiles"] == []


def test_only_networks_are_profiled() -> None:
    answer = kedge("bench", "overhead", "--profile")
    assert answer.code == 2
    assert "--profile: only networks are profiled" in answer.err
