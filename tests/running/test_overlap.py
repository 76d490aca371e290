"""An engine that evaluates during the next round gives the same bytes, and no line later than allowed."""

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.contract.resuming import models_and_history, stop_after
from tests.running.overlapping_engine import Late
from tests.running.plain_torch import NO_MOMENTUM, also, task_of

from kedge.algorithms import METHOD_FACTORIES, fedavg, fedper
from kedge.config.task import Task
from kedge.core.algorithm import Tune
from kedge.core.errors import Diverged
from kedge.core.server import Rejection, server_update
from kedge.engines.engine import Order
from kedge.engines.pack.pack import Pack
from kedge.engines.stack.stacked import Stacked
from kedge.engines.sums import Sums
from kedge.measure.last_models import LastModels
from kedge.running.progress import Interrupted, Observer, Progress
from kedge.running.runner import rounds, run


def late(task: Task, trouble: dict[int, Any] | None = None) -> Late:
    return Late(task.model, task.federation, trouble)


def plain(task: Task) -> Stacked:
    return Stacked(task.model, task.federation)


def watched(task: Task, engine: Late, folder: Path | None = None, **settings: Any) -> Progress:
    """Run, and add every history line to the engine's log."""
    settings.setdefault("observer", Observer()).line = lambda line: engine.log.append(f"line {line['round']}")
    return run(task, engine, folder, **settings)


def order(engine: Late) -> str:
    """Rounds (r1), their lines (l1) and starts of later stages (|), in the order of the log."""
    short = [entry[0] + entry.split()[1] if entry[0] in "rl" else "|" for entry in engine.log]
    return " ".join(short[1:])


def results(folder: Path) -> tuple[Any, list[list[str]], bytes]:
    """Files of a run: models, the history without times, its keys in their order, clients' lines."""
    keys = [list(line) for line in lines(folder)]
    return models_and_history(folder), keys, (folder / "clients.jsonl").read_bytes()


def lines(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "history.jsonl").read_text().splitlines()]


def make(folder: Path) -> Path:
    folder.mkdir()
    return folder


SOME = ["fedavg", "feddyn", "fedper", "fedrod", "fedbabu", "scaffold", "lg-fedavg", "fedtr"]
LATE = "r1 r2 l1 r3 l2 r4 l3 l4"


@pytest.mark.parametrize("every", [1, 2])
@pytest.mark.parametrize("name", SOME)
def test_a_run_leaves_the_same_bytes_whenever_its_numbers_are_asked_for(
    name: str, every: int, tmp_path: Path
) -> None:
    """With local tests, the `all` model, clients that never take part, and fine-tuning during the run."""
    algorithm = also(METHOD_FACTORIES[name](), LastModels())
    task = task_of((algorithm, 4), local=NO_MOMENTUM, evaluate_every=every, tune=Tune(1), tune_every=2)
    engine = late(task)
    watched(task, engine, make(tmp_path / "late"))
    run(task, plain(task), make(tmp_path / "plain"))
    assert results(tmp_path / "late") == results(tmp_path / "plain")
    models = [(tmp_path / who / "all.safetensors").read_bytes() for who in ("late", "plain")]
    assert models[0] == models[1]
    # A round without an evaluation does not wait.
    assert order(engine) == (LATE if every == 1 else "r1 l1 r2 r3 l2 l3 r4 l4")
    assert "personal.local.accuracy.unseen" in lines(tmp_path / "late")[1]


@pytest.mark.parametrize("longest", [6, 9])
def test_clients_models_are_looked_at_some_at_a_time(longest: int, tmp_path: Path) -> None:
    """Two pairs of clients: with tests of equal length they share a graph, otherwise each has its own."""
    task = task_of((fedper(), 2))
    data = task.federation
    task = replace(
        task, federation=replace(data, local_tests=tuple(own[:longest] for own in data.local_tests))
    )
    engines = late(task), plain(task)
    for engine, name in zip(engines, ("late", "plain"), strict=True):
        engine.at_once = 2
        run(task, engine, make(tmp_path / name))
    assert results(tmp_path / "late") == results(tmp_path / "plain")
    names = [name[2:] for name in engines[0].late.known if name[0] == "own"]
    assert names == [(2, 6), (2, 9)][: 1 if longest == 6 else 2]


def test_an_engine_that_does_not_work_beside_is_asked_at_once() -> None:
    task = task_of((fedper(), 4))
    engine = late(task)
    engine.late.overlaps = False
    watched(task, engine)
    assert order(engine) == "r1 l1 r2 l2 r3 l3 r4 l4"


def test_the_history_is_complete_after_the_last_round() -> None:
    """Without checkpoints, no line waits for one."""
    task = task_of((fedper(), 4))
    engine = late(task)
    progress = watched(task, engine, checkpoint_every=1)
    assert order(engine) == LATE
    assert [line["round"] for line in progress.history] == [1, 2, 3, 4]


def test_a_rule_on_the_history_has_all_of_it() -> None:
    task = task_of((fedper(), 3), (fedavg(), 1))
    asked: set[tuple[int, ...]] = set()

    def until(history: Sequence[Any]) -> bool:
        asked.add(tuple(line["round"] for line in history if "personal.local.accuracy" in line))
        return len(history) == 2

    first, second = task.stages
    task = replace(task, stages=(replace(first, until=until), second))
    engine = late(task)
    watched(task, engine)
    assert order(engine) == "r1 l1 r2 l2 | r3 r4 l3 l4"
    assert asked == {(1,), (1, 2)}


def test_a_checkpoint_has_the_lines_of_all_its_rounds(tmp_path: Path) -> None:
    task = task_of((fedper(), 4))
    engine = late(task)
    watched(task, engine, tmp_path, checkpoint_every=2)
    assert order(engine) == "r1 r2 l1 l2 r3 r4 l3 l4"
    lengths = json.loads((tmp_path / "checkpoint/000002/state.json").read_text())["lengths"]
    for name, length in lengths.items():
        assert (tmp_path / f"{name}.jsonl").read_bytes()[:length].count(b"\n") == 2
        assert (tmp_path / f"{name}.jsonl").read_bytes()[length - 1 : length] == b"\n"


def test_a_stage_s_lines_are_written_before_the_next_begins(tmp_path: Path) -> None:
    task = task_of((fedavg(), 2), (fedper(), 2))
    engine = late(task)
    watched(task, engine, make(tmp_path / "late"))
    run(task, plain(task), make(tmp_path / "plain"))
    assert order(engine) == "r1 r2 l1 l2 | r3 r4 l3 l4"
    assert results(tmp_path / "late") == results(tmp_path / "plain")


@pytest.mark.parametrize("after", [1, 2, 3])
def test_a_run_that_is_stopped_has_the_line_of_its_last_round_and_resumes(after: int, tmp_path: Path) -> None:
    task = task_of((fedper(), 4))
    engine = late(task)
    with pytest.raises(Interrupted):
        watched(task, engine, make(tmp_path / "late"), observer=stop_after(after))
    assert order(engine) == {1: "r1 l1", 2: "r1 r2 l1 l2", 3: "r1 r2 l1 r3 l2 l3"}[after]
    assert [line["round"] for line in lines(tmp_path / "late")] == list(range(1, after + 1))
    run(task, late(task), tmp_path / "late")
    run(task, plain(task), make(tmp_path / "plain"))
    assert results(tmp_path / "late") == results(tmp_path / "plain")


def test_the_line_before_a_round_that_diverges_comes_before_its_own(tmp_path: Path) -> None:
    task = task_of((fedper(), 4))
    engine = late(task, {3: (Rejection(0, "not finite"),)})
    with pytest.raises(Diverged, match="fedper diverged in round 3: client 0"):
        watched(task, engine, tmp_path)
    assert order(engine) == "r1 r2 l1 r3 l2"
    assert [(line["round"], "diverged" in line) for line in lines(tmp_path)] == [
        (1, False),
        (2, False),
        (3, True),
    ]
    assert "personal.local.accuracy" in lines(tmp_path)[1]


@pytest.mark.parametrize("error", [torch.OutOfMemoryError("no room"), KeyboardInterrupt(), OSError("disk")])
def test_the_line_before_a_round_that_fails_is_written(error: BaseException, tmp_path: Path) -> None:
    task = task_of((fedper(), 4))
    engine = late(task, {2: error})
    with pytest.raises(type(error)) as raised:
        watched(task, engine, tmp_path)
    assert raised.value is error
    assert order(engine) == "r1 r2 l1"
    assert [line["round"] for line in lines(tmp_path)] == [1]
    assert not (tmp_path / "model.safetensors").exists()


def test_who_is_interrupted_while_waiting_for_a_line_still_has_it(tmp_path: Path) -> None:
    task = task_of((fedper(), 4))
    engine = late(task)
    engine.late.errors = [KeyboardInterrupt()]
    with pytest.raises(KeyboardInterrupt):
        watched(task, engine, tmp_path)
    assert order(engine) == "r1 r2 r3 l1"  # it waits during the third round, which is completed
    assert [line["round"] for line in lines(tmp_path)] == [1]


def test_an_error_is_told_even_if_the_line_before_it_is_lost(tmp_path: Path) -> None:
    task = task_of((fedper(), 4))
    engine = late(task, {2: OSError("disk")})
    engine.late.errors = [RuntimeError("device gone")]
    with pytest.raises(OSError, match="disk") as raised:
        watched(task, engine, tmp_path)
    assert raised.value.__notes__ == [
        "Besides, the line of the previous round could not be written: device gone"
    ]
    assert lines(tmp_path) == []


def test_a_run_of_a_pack_works_beside_where_its_engine_does(tmp_path: Path) -> None:
    task = task_of((fedper(), 4))
    engine = late(task)
    pack = Pack([engine], Stacked)
    observer = Observer(line=lambda line: engine.log.append(f"line {line['round']}"))
    ended: dict[int, object] = {}
    pack.train_runs([rounds(task, engine, make(tmp_path / "late"), observer=observer)], ended.__setitem__)
    assert isinstance(ended[0], Progress)
    assert order(engine) == LATE
    run(task, plain(task), make(tmp_path / "plain"))
    assert results(tmp_path / "late") == results(tmp_path / "plain")


def test_no_second_is_counted_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every reading of the clock is a second later; overlapped work counts only in the time of its round."""
    for make_engine in (late, plain):
        ticks = iter(range(1000))
        monkeypatch.setattr("time.perf_counter", lambda ticks=ticks: float(next(ticks)))
        task = task_of((fedper(), 4))
        times = [line["time"] for line in run(task, make_engine(task)).history]
        assert sum(one["seconds"] for one in times) <= next(ticks)
        measuring = [one["seconds"] - one["train_seconds"] for one in times]
        assert (measuring[1] < measuring[0]) == (make_engine is late)  # all of it during the third round


def test_a_round_is_measured_while_the_next_one_trains(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Except the first round, and the last round of the run."""
    task = task_of((fedper(), 4))
    engine = late(task)
    train, launch = engine.train, engine.late.launch

    def logged_train(order: Order, clients: Sequence[int]) -> Sums:
        engine.log.append(f"train {order.round + 1}")
        return train(order, clients)

    def logged_launch(work: Any) -> Any:
        engine.log.append("look")
        return launch(work)

    monkeypatch.setattr(engine, "train", logged_train)
    monkeypatch.setattr(engine.late, "launch", logged_launch)
    run(task, engine, tmp_path)
    assert " ".join(engine.log[1:]) == (
        "train 1 round 1 look train 2 round 2 train 3 look round 3 train 4 look round 4 look"
    )


def test_what_fails_while_a_round_trains_is_that_runs_affair(tmp_path: Path) -> None:
    """One of two runs in a pack cannot write its second line; the error is raised in its fourth round."""
    task = task_of((fedavg(), 4))
    engines = [late(task), late(task)]
    pack = Pack(engines, Stacked)

    def full(line: dict[str, Any]) -> None:
        if line["round"] == 2:
            raise OSError("disk")

    watch = [Observer(), Observer(line=full)]
    folders = [make(tmp_path / name) for name in "ab"]
    places = list(zip(engines, folders, strict=True))
    ended: dict[int, Any] = {}
    pack.train_runs(
        [rounds(task, *given, observer=own) for given, own in zip(places, watch, strict=True)],
        ended.__setitem__,
    )
    assert isinstance(ended[0], Progress)
    assert [line["round"] for line in lines(folders[0])] == [1, 2, 3, 4]
    assert str(ended[1]) == "disk"
    assert [line["round"] for line in lines(folders[1])] == [1, 2]


def test_an_error_of_the_next_round_does_not_lose_what_was_left_of_the_last(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The third round fails before it trains: the second round is then evaluated and written."""
    task = task_of((fedper(), 4))
    engine = late(task)
    train = engine.train

    def failing(order: Order, clients: Sequence[int]) -> Sums:
        if order.round == 2:
            raise OSError("device")
        return train(order, clients)

    monkeypatch.setattr(engine, "train", failing)
    with pytest.raises(OSError, match="device"):
        run(task, engine, tmp_path)
    assert [line["round"] for line in lines(tmp_path)] == [1, 2]
    assert "personal.local.accuracy" in lines(tmp_path)[1]


@pytest.mark.parametrize(("make_engine", "last"), [(late, 3), (plain, 2)])
def test_a_server_that_is_not_finite_ends_the_run_with_its_round(
    make_engine: Any, last: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """With overlap, the error is raised in the third round, and that round is not recorded."""
    task = task_of((fedavg(), 4))
    rounds: list[int] = []

    def overflowing(*given: Any) -> Any:
        rounds.append(given[-1] + 1)
        server = server_update(*given)
        broken = {k: v * float("inf") for k, v in server.shared.items()}
        return server._replace(shared=broken) if rounds[-1] == 2 else server

    monkeypatch.setattr("kedge.running.runner.server_update", overflowing)
    engine = make_engine(task)
    asked: list[int] = []
    train = engine.train

    def counted(order: Order, clients: Sequence[int]) -> Sums:
        asked.append(order.round + 1)
        sums: Sums = train(order, clients)
        return sums

    engine.train = counted
    with pytest.raises(Diverged, match="diverged in round 2: the server's update gave"):
        run(task, engine, tmp_path)
    assert asked[-1] == last
    assert rounds == [1, 2]
    assert [(line["round"], "diverged" in line) for line in lines(tmp_path)] == [(1, False), (2, True)]
