"""The number of streams: a stored one is used; a trial runs only before long work."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from tests.engines.recorded import on_the_cpu

from kedge.algorithms import fedavg
from kedge.bench.workloads import WORKLOADS
from kedge.core.algorithm import Stage
from kedge.core.model import Model
from kedge.data.federation import Federation
from kedge.engines.choice import choose as auto
from kedge.engines.choice import trial
from kedge.engines.choice.trial import Work
from kedge.engines.cuda import streams
from kedge.engines.cuda.captured import Captured, captured_stack
from kedge.engines.cuda.streams import StreamTrial, best_streams, cache_key, candidates
from kedge.engines.stack.stacked import Stacked


def test_a_few_numbers_are_candidates() -> None:
    assert candidates(1) == [1]
    assert candidates(10) == [1, 2, 10]
    assert candidates(5) == [1, 5]
    assert candidates(100) == [1, 2]


def choose_streams(
    remaining: float, took: dict[int, float], precision: str = "tf32"
) -> tuple[int, list[int], list[str]]:
    """The number for ten rows whose trials take these seconds; the numbers tried; the messages."""
    work = WORKLOADS["overhead"]
    task, stage = work.task("cpu"), Stage(fedavg(), 1, work.local())
    ran: list[int] = []
    said: list[str] = []

    def seconds(count: int) -> float:
        ran.append(count)
        return took[count]

    key = cache_key(task.model, task.federation, stage, 10, precision)
    trial = StreamTrial(seconds, lambda: remaining, 20.0)
    return best_streams(key, 10, trial, said.append), ran, said


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("KEDGE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "a GPU")
    return tmp_path / "cache"


def test_short_work_is_one_stack_and_nothing_is_candidates() -> None:
    assert choose_streams(599.0, {}) == (1, [], [])


def test_long_work_takes_the_fastest_and_remembers_it() -> None:
    found, ran, said = choose_streams(601.0, {1: 3.0, 2: 2.0, 10: 4.0})
    assert (found, ran) == (2, [1, 2, 10])
    assert "60 s" in said[0]
    assert choose_streams(1.0, {}) == (2, [], [])  # known now, for the shortest work too
    assert choose_streams(1.0, {}, precision="bf16")[0] == 1  # but not for another precision


def test_a_spoilt_file_is_told_and_written_anew(own_cache: Path) -> None:
    own_cache.mkdir()
    (own_cache / "streams.json").write_text("{")
    found, _, said = choose_streams(601.0, {1: 1.0, 2: 2.0, 10: 4.0})
    assert found == 1
    assert "streams.json cannot be read" in said[0]
    assert streams.read_cache(own_cache / "streams.json", said.append)


def test_the_trial_runs_every_number_of_streams_and_the_engine_gets_the_best(
    own_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    work = replace(WORKLOADS["overhead"], clients=4, per_round=4)
    task, stage = work.task("cpu"), Stage(fedavg(), 1, work.local())
    asked_for: list[int] = []

    def watched(model: Model, data: Federation, chunk: int, streams: int) -> Stacked:
        asked_for.append(streams)
        return captured_stack(model, data, chunk, streams=streams)

    monkeypatch.setattr(trial, "captured_stack", watched)
    said: list[str] = []
    long = Work(task.model, task.federation, stage, 4, 10**7)

    def chosen(streams: int = 0) -> auto.Choice:
        wanted = auto.EngineOptions(chunk=4, streams=streams)
        return auto.Chooser(long, wanted, 1, 20.0, said.append).captured("a GPU")

    with on_the_cpu():
        choice = chosen()
        again = chosen()
    assert asked_for == [1, 2, 4]  # tried once
    assert choice == again
    assert choice.streams in asked_for
    assert list(streams.read_cache(own_cache / "streams.json", said.append).values()) == [choice.streams]
    assert chosen(3).streams == 3  # the given number
    monkeypatch.undo()
    with on_the_cpu():
        engine = auto.build(auto.Choice("captured", True, 4, "", 2), task.model, task.federation)
    assert isinstance(engine, Stacked)
    assert isinstance(engine.backend, Captured)
    assert engine.backend.streams == 2


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_a_gpu_tries_them_in_truth_and_a_run_takes_the_best(own_cache: Path) -> None:
    work = replace(WORKLOADS["overhead"], clients=4, per_round=4)
    task, stage = work.task("cuda"), Stage(fedavg(), 1, work.local())
    said: list[str] = []
    first = auto.choose(
        Work(task.model, task.federation, stage, 4, 10**8), auto.EngineOptions("captured"), said.append
    )
    assert any("trying 1, 2, 4 streams" in message for message in said), said
    assert first.streams in (1, 2, 4)
    assert list(streams.read_cache(own_cache / "streams.json", said.append).values()) == [first.streams]
    said.clear()
    short = Work(task.model, task.federation, stage, 4, 1)
    assert auto.choose(short, auto.EngineOptions("captured"), said.append).streams == first.streams
    assert not any("trying" in message for message in said)
    engine = auto.build(first, task.model, task.federation)
    assert isinstance(engine, Stacked)
    assert isinstance(engine.backend, Captured)
    assert engine.backend.streams == first.streams
