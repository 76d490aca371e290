"""The table of networks: its rows, their ratios, the order of measurements, and memory."""

import sys
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from kedge.bench.networks import footprint, speeds
from kedge.bench.networks.profile import Profile
from kedge.bench.networks.setting import NETWORKS, Setting
from kedge.bench.networks.speeds import NetworkBench, NetworkSpeed, Warm
from kedge.bench.networks.ways import Way
from kedge.bench.rounds import Round
from kedge.bench.timing import Timing


def measured(bench: NetworkBench) -> list[NetworkSpeed]:
    """The rows of a benchmark."""
    for _ in bench.speeds():
        pass
    return bench.sorted_rows()


@pytest.mark.slow
def test_rows_are_compared_with_the_plain_loop_and_with_central(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(NETWORKS, "lenet5", 10)
    said: list[str] = []
    timing = Timing(repeats=1, say=said.append)
    rows = measured(NetworkBench([Setting("lenet5", 2, 1)], ["fp32"], timing))
    assert [row.how for row in rows] == ["plain loop", "stacked", "central, compiled"]
    assert all(row.samples_per_second > 0 and row.first_round_seconds > 0 for row in rows)
    assert rows[0].to_plain == 1
    assert rows[2].to_central == 1
    assert rows[1].to_plain == pytest.approx(rows[1].samples_per_second / rows[0].samples_per_second)
    assert all(row.streams is None for row in rows)
    if sys.platform == "linux":
        assert all(row.memory is not None and row.memory > 0 for row in rows)
    assert any("warming up" in message for message in said)


def test_rows_of_several_streams_are_compared_with_central(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rounds of 10 samples that take 2, 1 and 4 s by a fake clock."""
    now = [0.0]
    monkeypatch.setattr(speeds, "time", SimpleNamespace(perf_counter=lambda: now[0]))

    def way(how: str, seconds: float, streams: int | None) -> Warm:
        def round(number: int) -> int:
            now[0] += seconds
            return 10

        return Warm(Way(Setting("x", 4, 1), how, "fp32", lambda: round, streams), round, 0.5, None)

    warm = [way("captured", 2, 1), way("captured, 4 streams", 1, 4), way("central, compiled", 4, None)]
    rows = NetworkBench([], ["fp32"], Timing(repeats=3), warm=warm).time_in_turns()
    assert [(row.streams, row.samples_per_second, row.to_central) for row in rows] == [
        (1, 5, 2), (4, 10, 4), (None, 2.5, 1),
    ]  # fmt: skip
    assert {row.to_plain for row in rows} == {None}


@pytest.mark.slow
def test_what_does_not_fit_into_memory_is_left_out_and_said(monkeypatch: pytest.MonkeyPatch) -> None:
    def make(how: str) -> Way:
        def make_round() -> Round:
            if how == "central, compiled":
                raise torch.OutOfMemoryError("no room")
            return lambda number: 10

        return Way(Setting("lenet5", 1, 1), how, "fp32", make_round)

    all_ways = [make(how) for how in ("plain loop", "stacked", "central, compiled")]
    monkeypatch.setattr(speeds, "ways", lambda *arguments: all_ways)
    said: list[str] = []
    timing = Timing(repeats=1, say=said.append)
    rows = measured(NetworkBench([Setting("lenet5", 1, 1)], ["fp32"], timing))
    assert [(row.how, row.to_central) for row in rows] == [("plain loop", None), ("stacked", None)]
    assert all(row.to_plain for row in rows)
    assert "lenet5, 1 clients: out of memory beside the others, left out: central, compiled, fp32" in said
    monkeypatch.setattr(speeds, "ways", lambda *arguments: all_ways[2:])
    assert measured(NetworkBench([Setting("lenet5", 1, 1)], ["fp32"], Timing(repeats=1))) == []


@pytest.mark.slow
def test_on_a_cpu_what_will_not_fit_is_not_begun(monkeypatch: pytest.MonkeyPatch) -> None:
    """A stack takes 1 GB and 2 GB for each client, central training 1 GB and 0.8 GB; 100 GB are free."""
    started: list[tuple[str, int]] = []

    def warm_up_way(way: Way, timing: Timing) -> Warm:
        started.append((way.how, way.setting.clients))
        taken = {"stacked": 2e9, "central, compiled": 8e8}[way.how] * way.setting.clients
        return Warm(way, lambda number: 10, 0.1, int(taken + 1e9))

    def ways(setting: Setting, *arguments: Any) -> list[Way]:
        return [Way(setting, how, "fp32", no_round) for how in ("stacked", "central, compiled")]

    def no_round() -> Round:
        raise AssertionError

    monkeypatch.setattr(speeds, "ways", ways)
    monkeypatch.setattr(speeds, "warm_up_way", warm_up_way)
    monkeypatch.setattr(footprint, "free_bytes", lambda device: int(1e11))
    said: list[str] = []
    settings = [Setting("a", clients, 1) for clients in (1, 10, 100)]
    rows = measured(NetworkBench(settings, ["fp32"], Timing(repeats=1, say=said.append)))
    assert ("stacked", 100) not in started
    assert [(row.how, row.clients) for row in rows[-2:]] == [
        ("central, compiled", 10),
        ("central, compiled", 100),
    ]
    about = "would need about 210 GB of memory, 100 are free"
    assert f"a, 100 clients: {about}, left out: stacked, fp32" in said
    monkeypatch.setattr(footprint, "free_bytes", lambda device: None)
    assert len(measured(NetworkBench(settings, ["fp32"], Timing(repeats=1)))) == 6


@pytest.mark.slow
def test_ten_clients_come_first_and_their_plain_loop_serves_all(monkeypatch: pytest.MonkeyPatch) -> None:
    """By a fake clock a round of the plain loop takes 8 s, a round of a stack of C clients C s."""
    now = [0.0]
    monkeypatch.setattr(speeds, "time", SimpleNamespace(perf_counter=lambda: now[0]))

    def ways(setting: Setting, precisions: Any, device: str, eager: bool, streams: Any) -> list[Way]:
        def make(seconds: float) -> Round:
            def round(number: int) -> int:
                now[0] += seconds
                return 80

            return round

        own = Way(setting, "stacked", "fp32", lambda: make(setting.clients))
        return eager * [Way(setting, "plain loop", "fp32", lambda: make(8))] + [own]

    monkeypatch.setattr(speeds, "ways", ways)
    settings = [Setting("a", clients, 1) for clients in (1, 10, 100)]
    bench = NetworkBench(settings, ["fp32"], Timing(repeats=3))
    assert [[row.clients for row in rows] for rows in bench.speeds()] == [[10, 10], [1], [100]]
    assert [(row.clients, row.how, row.to_plain) for row in bench.sorted_rows()] == [
        (1, "stacked", 8), (10, "plain loop", 1), (10, "stacked", 0.8), (100, "stacked", 0.08),
    ]  # fmt: skip


@pytest.mark.slow
def test_nothing_is_profiled_before_all_is_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The setting that was timed last is profiled first, since its programs are still warm."""
    done: list[str] = []

    def record(event: str, way: Way) -> None:
        done.append(f"{event} {way.setting.network}")

    def no_round() -> Round:
        raise AssertionError

    def warm_up(way: Way, *arguments: Any) -> Warm:
        record("warm", way)
        return Warm(way, lambda number: 1, 0.1, None)

    def round_speed(warm: Warm, *arguments: Any) -> float:
        record("time", warm.way)
        return 1.0

    def profile_way(warm: Warm, timing: Timing) -> Profile:
        record("profile", warm.way)
        return Profile(warm.way.setting.network, 1, warm.way.how, "fp32", 1, [])

    monkeypatch.setattr(speeds, "ways", lambda setting, *rest: [Way(setting, "captured", "fp32", no_round)])
    monkeypatch.setattr(speeds, "warm_up_if_it_fits", warm_up)
    monkeypatch.setattr(speeds, "round_speed", round_speed)
    monkeypatch.setattr(speeds, "profile_way", profile_way)
    bench = NetworkBench([Setting(name, 1, 1) for name in "abc"], ["fp32"], Timing(repeats=1))
    for rows in bench.speeds():
        done.append(f"rows {rows[0].network}")
    assert [row.network for row in bench.sorted_rows()] == ["a", "b", "c"]
    assert done == [f"{event} {name}" for name in "abc" for event in ("warm", "time", "rows")]
    done.clear()
    assert [profile.network for profile in bench.profiles()] == ["c", "a", "b"]
    assert done == ["profile c", "warm a", "profile a", "warm b", "profile b"]


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_streams_and_profiles_on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(NETWORKS, "lenet5", 10)
    bench = NetworkBench([Setting("lenet5", 4, 10)], ["tf32"], Timing("cuda", 2), (1, 2, 4))
    rows = measured(bench)
    profiles = list(bench.profiles())
    assert [row.streams for row in rows] == [None, None, 1, 2, 4, None]
    assert all(row.to_central is not None for row in rows[2:])
    assert [one.how for one in profiles] == [row.how for row in rows]
    for one in profiles:
        assert sum(kernel.share for kernel in one.kernels) == pytest.approx(1)
        assert all(kernel.calls > 0 for kernel in one.kernels)
