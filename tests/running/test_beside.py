"""An engine that evaluates beside the next round: the same bytes, and no line later than it may be."""

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.contract.test_resume import stop_after, written
from tests.running.late import Late
from tests.running.plain_torch import NO_MOMENTUM, also, task_of

from kedge.algorithms import METHODS, fedavg, fedper
from kedge.core.algorithm import Tune
from kedge.core.errors import Diverged
from kedge.core.server import Rejection
from kedge.engines.pack import Pack
from kedge.engines.stacked import Stacked
from kedge.measure.latest import Latest
from kedge.running.runner import asking, run
from kedge.running.task import Interrupted, Observer, Progress, Task


def late(task: Task, trouble: dict[int, Any] | None = None) -> Late:
    return Late(task.model, task.federation, trouble)


def plain(task: Task) -> Stacked:
    return Stacked(task.model, task.federation)


def watched(task: Task, engine: Late, folder: Path | None = None, **settings: Any) -> Progress:
    """Run; whoever watches notes the lines in the engine's log."""
    settings.setdefault("observer", Observer()).line = lambda line: engine.log.append(f"line {line['round']}")
    return run(task, engine, folder, **settings)


def order(engine: Late) -> str:
    """Rounds (r1), their lines (l1) and the begin of a stage after the first (|), as they came."""
    short = [entry[0] + entry.split()[1] if entry[0] in "rl" else "|" for entry in engine.log]
    return " ".join(short[1:])


def kept(folder: Path) -> tuple[Any, list[list[str]], bytes]:
    """What a run leaves: models, the history but for times, its keys in their order, clients' lines."""
    keys = [list(line) for line in lines(folder)]
    return written(folder), keys, (folder / "clients.jsonl").read_bytes()


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
    """With local tests, the `all` model, clients never seen, and models that are fine-tuned amid the run."""
    algorithm = also(METHODS[name](), Latest())
    task = task_of((algorithm, 4), local=NO_MOMENTUM, evaluate_every=every, tune=Tune(1), tune_every=2)
    engine = late(task)
    watched(task, engine, make(tmp_path / "late"))
    run(task, plain(task), make(tmp_path / "plain"))
    assert kept(tmp_path / "late") == kept(tmp_path / "plain")
    models = [(tmp_path / who / "all.safetensors").read_bytes() for who in ("late", "plain")]
    assert models[0] == models[1]
    # A round without an evaluation has nothing to wait for.
    assert order(engine) == (LATE if every == 1 else "r1 l1 r2 r3 l2 l3 r4 l4")
    assert "personal.local.accuracy.unseen" in lines(tmp_path / "late")[1]


@pytest.mark.parametrize("longest", [6, 9])
def test_clients_models_are_looked_at_some_at_a_time(longest: int, tmp_path: Path) -> None:
    """Two pairs: if their tests are as long the same graph is replayed, if not each has one of its own."""
    task = task_of((fedper(), 2))
    data = task.federation
    task = replace(
        task, federation=replace(data, local_tests=tuple(own[:longest] for own in data.local_tests))
    )
    engines = late(task), plain(task)
    for engine, name in zip(engines, ("late", "plain"), strict=True):
        engine.at_once = 2
        run(task, engine, make(tmp_path / name))
    assert kept(tmp_path / "late") == kept(tmp_path / "plain")
    names = [name[2:] for name in engines[0].known if name[0] == "own"]
    assert names == [(2, 6), (2, 9)][: 1 if longest == 6 else 2]


def test_an_engine_that_does_not_work_beside_is_asked_at_once() -> None:
    task = task_of((fedper(), 4))
    engine = late(task)
    engine.beside = False
    watched(task, engine)
    assert order(engine) == "r1 l1 r2 l2 r3 l3 r4 l4"


def test_the_history_is_complete_after_the_last_round() -> None:
    """And checkpoints that nobody writes are waited for by nobody."""
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
    assert kept(tmp_path / "late") == kept(tmp_path / "plain")


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
    assert kept(tmp_path / "late") == kept(tmp_path / "plain")


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
    engine.unheard = [KeyboardInterrupt()]
    with pytest.raises(KeyboardInterrupt):
        watched(task, engine, tmp_path)
    assert order(engine) == "r1 r2 l1"
    assert [line["round"] for line in lines(tmp_path)] == [1]


def test_an_error_is_told_even_if_the_line_before_it_is_lost(tmp_path: Path) -> None:
    task = task_of((fedper(), 4))
    engine = late(task, {2: OSError("disk")})
    engine.unheard = [RuntimeError("device gone")]
    with pytest.raises(OSError, match="disk") as raised:
        watched(task, engine, tmp_path)
    assert raised.value.__notes__ == [
        "Besides, the line of the round before could not be written: device gone"
    ]
    assert lines(tmp_path) == []


def test_a_run_of_a_pack_works_beside_where_its_engine_does(tmp_path: Path) -> None:
    task = task_of((fedper(), 4))
    engine = late(task)
    pack = Pack([engine], lambda whole: plain(task))
    observer = Observer(line=lambda line: engine.log.append(f"line {line['round']}"))
    ended: dict[int, object] = {}
    pack.carry_out([asking(task, engine, make(tmp_path / "late"), observer=observer)], ended.__setitem__)
    assert isinstance(ended[0], Progress)
    assert order(engine) == LATE
    run(task, plain(task), make(tmp_path / "plain"))
    assert kept(tmp_path / "late") == kept(tmp_path / "plain")


def test_the_time_of_a_line_is_not_counted_in_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    """A clock of which every reading is a second later: two readings around what is waited for."""
    ticks = iter(range(1000))
    monkeypatch.setattr("time.perf_counter", lambda: float(next(ticks)))
    times = {}
    for make_engine in (late, plain):
        task = task_of((fedper(), 4))
        times[make_engine] = [line["time"]["seconds"] for line in run(task, make_engine(task)).history]
    assert times[late] == times[plain]
