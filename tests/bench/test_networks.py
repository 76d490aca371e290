"""The bench of networks: every row is there, with its ratios."""

import sys
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch._inductor.config

from kedge.bench import footprint, networks
from kedge.bench.central import compiled_central
from kedge.bench.loops import Round
from kedge.bench.networks import Setting, Warm, Way, fitting, speeds, timed, ways
from kedge.bench.profile import Profile
from kedge.cli.actions.bench_plan import (
    Options,
    check_streams,
    chosen_precisions,
    network_settings,
    plan_of,
    stream_counts,
)
from kedge.core.errors import RequestError
from kedge.engines.cuda.tracing import traced


def test_rows_are_compared_with_the_plain_loop_and_with_central(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(networks.NETWORKS, "lenet5", 10)
    said: list[str] = []
    rows = speeds([Setting("lenet5", 2, 1)], ["fp32"], "cpu", 1, said.append)
    assert [row.how for row in rows] == ["plain loop", "stacked", "central, compiled"]
    assert all(row.samples_per_second > 0 and row.first_round_seconds > 0 for row in rows)
    assert rows[0].to_plain == 1
    assert rows[2].to_central == 1
    assert rows[1].to_plain == pytest.approx(rows[1].samples_per_second / rows[0].samples_per_second)
    assert all(row.streams is None for row in rows)
    if sys.platform == "linux":
        assert all(row.memory is not None and row.memory > 0 for row in rows)
    assert any("warming up" in message for message in said)


def test_a_row_for_every_number_of_streams(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(networks.NETWORKS, "lenet5", 10)
    setting = Setting("lenet5", 10, 1)
    data = setting.federation("cpu")
    monkeypatch.setattr(Setting, "federation", lambda self, device: data)
    made: list[int] = []
    monkeypatch.setattr(networks, "Captured", lambda *given, ahead, streams: made.append(streams))
    monkeypatch.setattr(networks, "rounds_of", lambda task, engine: None)
    found = ways(setting, ["tf32", "bf16"], "cuda", False, (1, 2, 3, 10, 20))
    one = [("captured", 1), ("captured, 2 streams", 2), ("captured, 10 streams", 10)]
    assert [(way.how, way.streams) for way in found] == 2 * [*one, ("central, compiled", None)]
    assert [way.precision for way in found] == 4 * ["tf32"] + 4 * ["bf16"]
    for way in found:
        if way.streams:
            way.make()
    assert made == 2 * [1, 2, 10]


@pytest.mark.parametrize(
    ("device", "hows"),
    [("cpu", ["stacked", "central, compiled"]), ("cuda", ["captured", "central, compiled"])],
)
def test_an_engine_is_measured_with_every_number_of_clients(
    device: str, hows: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    setting = Setting("standard-cnn", 1, 1)
    data = setting.federation("cpu")
    monkeypatch.setattr(Setting, "federation", lambda self, device: data)
    assert [way.how for way in ways(setting, ["fp32"], device, False)] == hows
    eager = [way.how for way in ways(setting, ["fp32"], device, True)]
    assert eager == ["plain loop", *dict.fromkeys(["stacked", *hows])]


def test_streams_split_the_rows_that_clients_are_padded_to() -> None:
    assert fitting((1, 2, 10), 1) == [1]
    assert fitting((1, 2, 7, 8), 7) == [1, 2, 8]
    assert fitting((3, 20), 10) == []


def test_rows_of_several_streams_are_compared_with_central(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rounds of 10 samples; a clock by which they take 1, 2 and 4 s."""
    now = [0.0]
    monkeypatch.setattr(networks, "time", SimpleNamespace(perf_counter=lambda: now[0]))

    def way(how: str, seconds: float, streams: int | None) -> Warm:
        def round(number: int) -> int:
            now[0] += seconds
            return 10

        return Warm(Way(Setting("x", 4, 1), how, "fp32", lambda: round, streams), round, 0.5, None)

    warm = [way("captured", 2, 1), way("captured, 4 streams", 1, 4), way("central, compiled", 4, None)]
    rows = timed(warm, "cpu", 3, lambda message: None)
    assert [(row.streams, row.samples_per_second, row.to_central) for row in rows] == [
        (1, 5, 2), (4, 10, 4), (None, 2.5, 1),
    ]  # fmt: skip
    assert {row.to_plain for row in rows} == {None}


def test_what_does_not_fit_into_memory_is_left_out_and_said(monkeypatch: pytest.MonkeyPatch) -> None:
    def make(how: str) -> Way:
        def made() -> Round:
            if how == "central, compiled":
                raise torch.OutOfMemoryError("no room")
            return lambda number: 10

        return Way(Setting("lenet5", 1, 1), how, "fp32", made)

    every = [make(how) for how in ("plain loop", "stacked", "central, compiled")]
    monkeypatch.setattr(networks, "ways", lambda *rest: every)
    said: list[str] = []
    rows = speeds([Setting("lenet5", 1, 1)], ["fp32"], "cpu", 1, said.append)
    assert [(row.how, row.to_central) for row in rows] == [("plain loop", None), ("stacked", None)]
    assert all(row.to_plain for row in rows)
    assert "lenet5, 1 clients: out of memory beside the others, left out: central, compiled, fp32" in said
    monkeypatch.setattr(networks, "ways", lambda *rest: every[2:])
    assert speeds([Setting("lenet5", 1, 1)], ["fp32"], "cpu", 1) == []


def test_on_a_cpu_what_will_not_fit_is_not_begun(monkeypatch: pytest.MonkeyPatch) -> None:
    """A client of a stack takes 2 GB, one of central training 0.8, any run another 1; 100 GB are free."""
    begun: list[tuple[str, int]] = []

    def warmed(way: Way, device: str, say: Any) -> Warm:
        begun.append((way.how, way.setting.clients))
        taken = {"stacked": 2e9, "central, compiled": 8e8}[way.how] * way.setting.clients
        return Warm(way, lambda number: 10, 0.1, int(taken + 1e9))

    def ways(setting: Setting, *rest: Any) -> list[Way]:
        return [Way(setting, how, "fp32", no_round) for how in ("stacked", "central, compiled")]

    def no_round() -> Round:
        raise AssertionError

    monkeypatch.setattr(networks, "ways", ways)
    monkeypatch.setattr(networks, "warmed", warmed)
    monkeypatch.setattr(footprint, "free", lambda device: int(1e11))
    said: list[str] = []
    settings = [Setting("a", clients, 1) for clients in (1, 10, 100)]
    rows = speeds(settings, ["fp32"], "cpu", 1, said.append)
    assert ("stacked", 100) not in begun
    assert [(row.how, row.clients) for row in rows[-2:]] == [
        ("central, compiled", 10),
        ("central, compiled", 100),
    ]
    about = "would need about 210 GB of memory, 100 are free"
    assert f"a, 100 clients: {about}, left out: stacked, fp32" in said
    monkeypatch.setattr(footprint, "free", lambda device: None)
    assert len(speeds(settings, ["fp32"], "cpu", 1)) == 6


def test_ten_clients_come_first_and_their_plain_loop_serves_all(monkeypatch: pytest.MonkeyPatch) -> None:
    """A clock by which a round of the plain loop takes 8 s, of a stack of C clients C s."""
    now = [0.0]
    monkeypatch.setattr(networks, "time", SimpleNamespace(perf_counter=lambda: now[0]))

    def ways(setting: Setting, precisions: Any, device: str, eager: bool, streams: Any) -> list[Way]:
        def make(seconds: float) -> Round:
            def round(number: int) -> int:
                now[0] += seconds
                return 80

            return round

        own = Way(setting, "stacked", "fp32", lambda: make(setting.clients))
        return eager * [Way(setting, "plain loop", "fp32", lambda: make(8))] + [own]

    monkeypatch.setattr(networks, "ways", ways)
    told: list[list[int]] = []
    rows = speeds(
        [Setting("a", clients, 1) for clients in (1, 10, 100)], ["fp32"], "cpu", 3,
        done=lambda own: told.append([row.clients for row in own]),
    )  # fmt: skip
    assert told == [[10, 10], [1], [100]]
    assert [(row.clients, row.how, row.to_plain) for row in rows] == [
        (1, "stacked", 8), (10, "plain loop", 1), (10, "stacked", 0.8), (100, "stacked", 0.08),
    ]  # fmt: skip


@pytest.mark.parametrize("look", [True, False])
def test_nothing_is_profiled_before_all_is_timed(monkeypatch: pytest.MonkeyPatch, look: bool) -> None:
    done: list[str] = []

    def note(what: str, given: Any, answer: Any) -> Any:
        done.append(f"{what} {given}")
        return answer

    monkeypatch.setattr(networks, "ways", lambda one, *rest: [one.network])
    monkeypatch.setattr(networks, "if_it_fits", lambda way, *rest: note("warm", way, way))
    row = SimpleNamespace(clients=1, how="captured")
    monkeypatch.setattr(
        networks,
        "timed",
        lambda warm, *rest: note("time", warm[0], [SimpleNamespace(**vars(row), network=warm[0])]),
    )
    monkeypatch.setattr(networks, "profiled", lambda one, *rest: note("profile", one, f"profile {one}"))
    profiles: list[Profile] = []
    settings = [Setting(name, 1, 1) for name in "abc"]
    tell = lambda rows: done.append(f"told {rows[0].network}")  # noqa: E731
    rows = speeds(settings, ["fp32"], "cpu", 1, look=profiles.append if look else None, done=tell)
    assert [one.network for one in rows] == ["a", "b", "c"]
    assert done[:9] == [f"{what} {name}" for name in "abc" for what in ("warm", "time", "told")]
    assert done[9:] == look * ["profile c", "warm a", "profile a", "warm b", "profile b"]
    assert list(map(str, profiles)) == look * ["profile c", "profile a", "profile b"]


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_streams_and_profiles_on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(networks.NETWORKS, "lenet5", 10)
    profiles: list[Profile] = []
    rows = speeds([Setting("lenet5", 4, 10)], ["tf32"], "cuda", 2, streams=(1, 2, 4), look=profiles.append)
    assert [row.streams for row in rows] == [None, None, 1, 2, 4, None]
    assert all(row.to_central is not None for row in rows[2:])
    assert [one.how for one in profiles] == [row.how for row in rows]
    for one in profiles:
        assert sum(kernel.share for kernel in one.kernels) == pytest.approx(1)
        assert all(kernel.calls > 0 for kernel in one.kernels)


def test_defaults_by_device() -> None:
    settings = network_settings("cuda", "standard-cnn,resnet20", "1,10,100", 0)
    assert [one.clients for one in settings] == [1, 10, 100, 1, 10, 100]
    assert {one.steps for one in settings} == {100}
    assert chosen_precisions("cuda", "", "tf32", "bf16") == ["tf32", "bf16"]
    settings = network_settings("cpu", "standard-cnn", "1,10", 0)
    assert {one.steps for one in settings} == {1}
    assert chosen_precisions("cpu", "", "tf32", "bf16") == ["fp32"]


@pytest.mark.parametrize(
    ("networks", "clients", "precisions", "steps", "said"),
    [
        ("standart-cnn", "1", "", 0, "Did you mean 'standard-cnn'"),
        ("standard-cnn", "0", "", 0, "--clients 0"),
        ("standard-cnn", "ten", "", 0, "--clients ten"),
        ("standard-cnn", "1", "tf32", 0, "allowed here: fp64, fp32, bf16"),
        ("standard-cnn", "1", "", -1, "--steps -1"),
        ("standard-cnn", "", "", 0, "--clients : need whole numbers"),
        ("", "1", "", 0, "--networks : no such network"),
    ],
)
def test_wrong_requests(networks: str, clients: str, precisions: str, steps: int, said: str) -> None:
    options = Options("cpu", 1, True, networks, clients, precisions, steps, 2, "1", False, False)
    with pytest.raises(RequestError, match=said):
        plan_of(["networks"], options)


def test_stream_counts() -> None:
    assert stream_counts("cuda", "10, 2,1,2") == [1, 2, 10]
    assert stream_counts("cpu", "1") == [1]
    check_streams([3, 5], [1, 10])
    check_streams([1], [1])


@pytest.mark.parametrize(
    ("device", "streams", "said"),
    [
        ("cuda", "0", "--streams 0: need whole numbers of at least 1, as in 1,2,10"),
        ("cuda", "1,-2", "--streams -2"),
        ("cuda", "², 1", "--streams ²"),
        ("cuda", "", "--streams : need"),
        ("cpu", "1,2", "--streams 2: more than 1 needs a CUDA device"),
    ],
)
def test_wrong_stream_counts(device: str, streams: str, said: str) -> None:
    with pytest.raises(RequestError, match=said):
        stream_counts(device, streams)


def test_streams_that_fit_no_round() -> None:
    with pytest.raises(RequestError, match="--streams 3,7: a round has 1 or 10 rows here"):
        check_streams([3, 7], [1, 10, 9])


@pytest.mark.parametrize("message", ["expected size 2==2, stride 9==1 at dim=1", "something else"])
def test_central_training_takes_the_usual_layout_where_the_compiler_errs(
    message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    layouts: list[bool] = []

    def erring(*args: Any, **named: Any) -> Any:
        layouts.append(torch._inductor.config.layout_optimization)
        if len(layouts) == 1:
            raise AssertionError(message)
        return traced(*args, **named)

    monkeypatch.setattr("kedge.bench.central.traced", erring)
    setting = Setting("standard-cnn", 1, 1)
    data = setting.federation("cpu")
    task = setting.task(data, "fp32")
    given = task.model, task.stages[0].local, task.federation, 2, 1
    if "stride" not in message:
        with pytest.raises(AssertionError, match="something else"):
            compiled_central(*given)
        return
    assert compiled_central(*given)(0) == 2
    assert layouts[1:] == [False]
