"""Runs of a pack have the results of runs alone, in their own folders, even if other runs fail."""

import gc
import threading
import weakref
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.running.short_runs import distance, errors_of, experiment, lines, members

from kedge.config.task import Task
from kedge.core.errors import Diverged, RequestError
from kedge.data.federation import Federation
from kedge.engines.choice.choose import Choice
from kedge.engines.choice.trial import Work
from kedge.engines.pack.pack import Pack
from kedge.running import engine_settings
from kedge.running.engine_settings import read_engine_settings
from kedge.running.execute import execute, run_is_finished
from kedge.running.folders.folder import locked
from kedge.running.packs.pack_thread import PackThread
from kedge.running.preparation import PreparedRun
from kedge.running.progress import Abandoned, Interrupted, Progress
from kedge.running.progress_bar import PackBar
from kedge.running.recording import recorder
from kedge.running.recording.evaluation import start_evaluation
from kedge.running.requests import Outcome, RunRequest
from kedge.running.several_runs import run_all


@pytest.mark.slow
@pytest.mark.parametrize(("precision", "tolerance"), [("fp64", 1e-12), ("fp32", 1e-5)])
def test_packed_runs_end_as_alone(
    precision: str, tolerance: float, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Runs with different seed, learning rate, partition, participation, rounds; clients have memories."""
    rounds: list[int] = []
    train = Pack.train_side_by_side

    def counting(self: Pack, asked: Sequence[Any]) -> Any:
        rounds.append(len(asked))
        return train(self, asked)

    monkeypatch.setattr(Pack, "train_side_by_side", counting)
    own: list[dict[str, Any]] = [
        {"seed": 1},
        {"seed": 2, "optimizer__lr": 0.05},
        {"seed": 3, "partition__alpha": 1.0, "partition__clients": 8},
        {"participation__per_round": 2, "rounds": 3},
    ]
    experiments = [
        experiment(method="fedbug+feddyn(alpha=0.1)", engine__precision=precision, **one) for one in own
    ]
    assert errors_of(members(tmp_path / "packed", experiments)) == dict.fromkeys(
        ["run0", "run1", "run2", "run3"], None
    )
    assert rounds == [4, 4, 4, 3]
    for number, one in enumerate(experiments):
        folder = tmp_path / "packed" / f"run{number}"
        execute(one, tmp_path / f"alone{number}")
        assert distance(folder, tmp_path / f"alone{number}") < tolerance
        assert (folder / "config.toml").read_bytes() == (tmp_path / f"alone{number}/config.toml").read_bytes()
        assert sorted(p.name for p in (folder / "checkpoint").iterdir())[-1] == f"{one.rounds:06d}"
        assert run_is_finished(folder)
        engine = read_engine_settings(folder)
        assert engine is not None
        assert (engine["packed"], engine["name"]) == (4, "stacked")


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_packed_runs_on_a_gpu_end_as_alone(tmp_path: Path) -> None:
    """Captured graphs of several runs; only one run has a last round."""
    given = {"engine__name": "captured", "engine__compile": "auto", "engine__precision": "fp64"}
    own = [experiment(seed=n, rounds=r, method="scaffold", **given) for n, r in enumerate((4, 3, 3))]
    assert set(errors_of(members(tmp_path, own)).values()) == {None}
    for number, one in enumerate(own):
        execute(one, tmp_path / f"alone{number}")
        assert distance(tmp_path / f"run{number}", tmp_path / f"alone{number}") < 1e-10
        assert (read_engine_settings(tmp_path / f"run{number}") or {})["name"] == "captured"


@pytest.mark.slow
def test_one_after_another_gives_the_bytes_of_a_run_alone(tmp_path: Path) -> None:
    experiments = [experiment(seed=seed) for seed in range(2)]
    assert list(errors_of(members(tmp_path, experiments), limit=1)) == ["run0", "run1"]
    for number, one in enumerate(experiments):
        execute(one, tmp_path / f"alone{number}")
        for name in ("model.safetensors", "average.safetensors"):
            assert (tmp_path / f"run{number}" / name).read_bytes() == (
                tmp_path / f"alone{number}" / name
            ).read_bytes()
        assert (read_engine_settings(tmp_path / f"run{number}") or {})["packed"] == 1


def test_packs_are_no_larger_than_asked_for_and_equal(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    sizes: list[int] = []
    begin = Pack.__init__

    def counting(self: Pack, engines: Any, build: Any, most: int) -> None:
        sizes.append(len(engines))
        begin(self, engines, build, most)

    monkeypatch.setattr(Pack, "__init__", counting)
    experiments = [experiment(seed=seed, rounds=1) for seed in range(4)]
    errors_of(members(tmp_path, experiments), limit=3)
    assert sizes == [2, 2]
    assert [(read_engine_settings(tmp_path / f"run{n}") or {})["packed"] for n in range(4)] == [2] * 4


def test_equal_samples_lie_in_memory_once(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    seen: list[Federation] = []

    def outcomes(self: PackThread) -> list[tuple[PreparedRun, Outcome]]:
        seen.extend(run.task.federation for run in self.runs)
        return []

    monkeypatch.setattr(PackThread, "outcomes", outcomes)
    errors_of(members(tmp_path, [experiment(seed=seed) for seed in range(3)]))
    assert len(seen) == 3
    assert len({id(data.pool) for data in seen}) == len({id(data.test) for data in seen}) == 1


def after(rounds: int, folder: Path) -> Callable[[], bool]:
    """Whether this run has written at least `rounds` lines."""
    return lambda: (folder / "history.jsonl").exists() and len(lines(folder)) >= rounds


@pytest.mark.slow
def test_interrupted_runs_are_saved_and_go_on_together_or_alone(tmp_path: Path) -> None:
    experiments = [experiment(seed=seed, method="scaffold", engine__precision="fp64") for seed in range(3)]
    broken, whole = tmp_path / "broken", tmp_path / "whole"
    assert set(errors_of(members(whole, experiments)).values()) == {None}
    with pytest.raises(Interrupted):
        errors_of(members(broken, experiments), stop=after(3, broken / "run1"))
    for number in range(3):
        done = len(lines(broken / f"run{number}"))
        assert done in (3, 4)  # a run may have requested its next round before
        assert (broken / f"run{number}/checkpoint/{done:06d}").is_dir()
    with pytest.raises(Interrupted):  # stopped before any run starts
        errors_of(members(tmp_path / "none", experiments), stop=lambda: True)
    assert not (tmp_path / "none").exists()
    on = members(broken, experiments, "resume")
    assert errors_of(on[:1]) == {"run0": None}
    assert errors_of(on[1:]) == {"run1": None, "run2": None}
    for number in range(3):
        assert distance(broken / f"run{number}", whole / f"run{number}") < 1e-12
        assert (read_engine_settings(broken / f"run{number}") or {})["packed"] == 3


@pytest.mark.slow
def test_a_run_with_a_checkpoint_goes_on_beside_one_that_begins(tmp_path: Path) -> None:
    """The first run was stopped while it trained alone."""
    experiments = [experiment(seed=seed, engine__precision="fp64") for seed in range(2)]
    first = tmp_path / "run0"
    with pytest.raises(Interrupted):
        errors_of(members(tmp_path, experiments[:1]), stop=after(2, first))
    assert len(lines(first)) == 2
    some = [RunRequest(first, experiments[0], "resume"), RunRequest(tmp_path / "run1", experiments[1])]
    assert errors_of(some) == {"run0": None, "run1": None}
    for number in range(2):
        execute(experiments[number], tmp_path / f"alone{number}")
        assert distance(tmp_path / f"run{number}", tmp_path / f"alone{number}") < 1e-12
    assert [(read_engine_settings(tmp_path / f"run{n}") or {})["packed"] for n in range(2)] == [1, 2]


def test_one_that_diverges_leaves_the_others_alone(tmp_path: Path) -> None:
    wild = {"training__clip": 1e30, "engine__precision": "fp64"}
    experiments = [experiment(seed=0, **wild), experiment(seed=1, optimizer__lr=1e300, **wild)]
    ended = errors_of(members(tmp_path, experiments))
    assert ended["run0"] is None
    assert isinstance(ended["run1"], Diverged)
    assert "diverged in round 1" in str(ended["run1"])
    assert lines(tmp_path / "run1")[-1]["diverged"]
    assert not run_is_finished(tmp_path / "run1")
    execute(experiments[0], tmp_path / "alone")
    assert distance(tmp_path / "run0", tmp_path / "alone") < 1e-12


@pytest.mark.slow
def test_runs_without_memory_beside_the_stack_go_on_in_smaller_packs(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """For two of four runs memory runs out after the third round; their checkpoints are of the second."""
    experiments = [experiment(seed=seed, method="scaffold", engine__precision="fp64") for seed in range(4)]
    full = {2, 3}

    def short(task: Task, engine: Any, stage: Any, progress: Progress, tests: Any) -> Any:
        if progress.round == 3 and task.seed in full:
            full.remove(task.seed)
            raise RuntimeError("capture was broken off") from torch.OutOfMemoryError("as if")
        return start_evaluation(task, engine, stage, progress, tests)

    monkeypatch.setattr(recorder, "start_evaluation", short)
    said: list[str] = []
    ended = errors_of(members(tmp_path, experiments), say=said.append)
    assert ended == {f"run{number}": None for number in range(4)}
    assert any("2 runs resume" in message and "packs of at most 2" in message for message in said)
    for number, one in enumerate(experiments):
        execute(one, tmp_path / f"alone{number}")
        assert distance(tmp_path / f"run{number}", tmp_path / f"alone{number}") < 1e-12
        assert [line["round"] for line in lines(tmp_path / f"run{number}")] == [1, 2, 3, 4]


@pytest.mark.slow
def test_a_run_alone_without_memory_fails(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def short(*_: Any) -> Any:
        raise torch.OutOfMemoryError("as if")

    monkeypatch.setattr(recorder, "start_evaluation", short)
    said: list[str] = []
    ended = errors_of(members(tmp_path, [experiment(seed=seed) for seed in range(4)]), say=said.append)
    assert [str(ended[f"run{number}"]) for number in range(4)] == ["as if"] * 4
    assert sum("out of memory" in message for message in said) == 2  # packs of four, of two; then runs alone


@pytest.mark.slow
def test_an_error_does_not_hold_on_to_its_run(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    packs: list[weakref.ref[Pack]] = []
    begin = Pack.__init__

    def record_pack(self: Pack, engines: Any, build: Any, most: int) -> None:
        packs.append(weakref.ref(self))
        begin(self, engines, build, most)

    monkeypatch.setattr(Pack, "__init__", record_pack)
    own = [experiment(seed=seed, optimizer__lr=1e30, training__clip=1e30) for seed in range(2)]
    ended = list(run_all(members(tmp_path, own), shown=False))
    assert all(isinstance(outcome.error, Diverged) for outcome in ended)
    assert all("in rounds" in outcome.trace for outcome in ended)
    gc.collect()
    assert [pack() for pack in packs] == [None]


def test_one_that_cannot_begin_leaves_the_others_alone(tmp_path: Path) -> None:
    experiments = [experiment(seed=0), experiment(seed=1, participation__per_round=7), experiment(seed=2)]
    some = members(tmp_path, experiments)
    execute(experiments[2], tmp_path / "run2")
    with locked(tmp_path / "run2"):
        ended = errors_of(
            [
                *some[:2],
                RunRequest(some[2].folder, some[2].experiment, "resume"),
                RunRequest(tmp_path / "run3", experiment(seed=3)),
            ]
        )
    assert [ended[name] for name in ("run0", "run3")] == [None, None]
    assert "there are only 6 clients" in str(ended["run1"])
    assert isinstance(ended["run1"], RequestError)
    assert "another process is running in" in str(ended["run2"])
    assert not (tmp_path / "run1").exists()


def test_where_stacking_does_not_pay_runs_go_one_after_another(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    asked: list[int] = []

    def choose(work: Work, *rest: Any) -> Choice:
        asked.append(work.per_round)
        return Choice("sequential", False, 0, "as if measured")

    monkeypatch.setattr(engine_settings, "choose", choose)
    own = [
        experiment(seed=seed, engine__name="auto", rounds=1, participation__per_round=seed + 1)
        for seed in (0, 1)
    ]
    assert list(errors_of(members(tmp_path, own))) == ["run0", "run1"]
    assert asked == [3, 1, 2]  # the pack with the clients of all, then each run
    assert [(read_engine_settings(tmp_path / f"run{n}") or {})["packed"] for n in (0, 1)] == [1, 1]


def test_an_engine_that_cannot_be_is_the_error_of_all_its_runs(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("kedge.engines.choice.choose.has_compiler", lambda: False)
    own = [experiment(seed=seed, engine__compile="on") for seed in range(2)] + [experiment(seed=2)]
    ended = errors_of(members(tmp_path, own))
    assert all("no C++ compiler is found here" in str(ended[name]) for name in ("run0", "run1"))
    assert ended["run2"] is None


def test_leaving_at_once_does_not_wait(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A second Ctrl-C interrupts the waiting main thread; the runs stop soon after."""

    def interrupt(self: PackThread) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(PackThread, "wait_for_end", interrupt)
    before = set(threading.enumerate())
    with pytest.raises(Abandoned):
        errors_of(members(tmp_path, [experiment(seed=seed, rounds=500) for seed in range(2)]))
    for thread in set(threading.enumerate()) - before:
        thread.join(60)
        assert not thread.is_alive()
    assert all(len(lines(tmp_path / f"run{n}")) < 500 for n in range(2))


def test_threads_and_precision_are_put_back(tmp_path: Path) -> None:
    before = torch.get_num_threads(), torch.backends.cudnn.deterministic
    try:
        torch.set_num_threads(2)
        errors_of(members(tmp_path, [experiment(seed=seed, rounds=1) for seed in range(2)]))
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before[0])
    assert torch.backends.cudnn.deterministic == before[1]


def test_the_bar_shows_all_runs_together() -> None:
    bar = PackBar("fedavg × 3", [4, 4, 2], shown=False)
    first, second, third = (bar.line_callback(number) for number in range(3))

    def line(round: int, accuracy: float | None, speed: float) -> dict[str, Any]:
        return {
            "round": round,
            "distributed.global.accuracy": accuracy,
            "time": {"samples_per_second": speed},
        }

    first(line(3, 0.5, 100.0))
    second(line(2, 0.7, 50.0))
    third(line(1, None, 10.0))
    task = bar.progress.tasks[0]
    assert (task.completed, task.total) == (6, 10)
    assert task.fields == {"accuracy": "60.0 %", "speed": "160", "ended": ""}
    bar.count_end(2, Diverged("…"))
    bar.count_end(1, None)
    bar.count_end(0, Interrupted())
    assert bar.progress.tasks[0].fields["ended"] == "  1 finished, 1 failed"


def test_outcomes_come_as_runs_end(tmp_path: Path) -> None:
    own = [experiment(seed=seed, rounds=rounds) for seed, rounds in enumerate((3, 1, 2))]
    ended: list[Outcome] = list(run_all(members(tmp_path, own), shown=False))
    assert [outcome.request.folder.name for outcome in ended] == ["run1", "run2", "run0"]
