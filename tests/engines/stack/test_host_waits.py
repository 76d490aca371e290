"""The captured engine keeps its tensors on the device, and waits for it once per round."""

from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
from tests.engines.cuda.test_captured import METHODS, captured, task_of
from tests.engines.meta_device import Watch, on_the_meta_device
from torch import Tensor
from torch.utils._pytree import tree_leaves

from kedge.algorithms import fedavg, scaffold
from kedge.engines.cuda.captured import Captured, captured_stack
from kedge.engines.pack.pack import Pack
from kedge.engines.stack.stacked import Stacked
from kedge.running.runner import rounds, run


@pytest.mark.slow
@pytest.mark.parametrize("method", METHODS)
def test_every_method_keeps_its_tensors_on_the_device(method: str) -> None:
    """In training, evaluation and fine-tuning."""
    with on_the_meta_device():
        task = task_of(METHODS[method], "meta", network="mlp")
        engine = captured(task)
        run(task, engine)
    assert isinstance(engine.backend, Captured)
    stacks = [lane.arguments() for lanes in engine.backend.lanes.values() for lane in lanes.lanes]
    read = tree_leaves([stacks, [end.arguments for end in engine.backend.ends.values()]])
    assert len(read) > 20
    assert all(v.is_meta for v in read if isinstance(v, Tensor))


@pytest.mark.slow
@pytest.mark.parametrize("case", ["augmented", "chunked", "frozen", "batch norm", "two streams"])
def test_every_way_to_train_keeps_its_tensors_on_the_device(case: str) -> None:
    with on_the_meta_device():
        task = task_of(
            scaffold(), "meta", augment="flip-crop" if case == "augmented" else "none",
            norm="batch" if case == "batch norm" else "group", frozen=5 if case == "frozen" else 0,
        )  # fmt: skip
        chunk, streams = 3 if case == "chunked" else 0, 2 if case == "two streams" else 1
        run(task, captured(task, chunk, streams))


def waits_of_rounds(watch: Watch, monkeypatch: pytest.MonkeyPatch, kind: Any, name: str) -> list[int]:
    """The number of waits before each round; filled while the rounds train."""
    found: list[int] = []
    function = getattr(kind, name)

    def counted(*given: Any) -> Any:
        found.append(watch.waits)
        return function(*given)

    monkeypatch.setattr(kind, name, counted)
    return found


@pytest.mark.slow
def test_the_host_waits_twice_a_round(monkeypatch: pytest.MonkeyPatch) -> None:
    """For losses and flags of the round; and, when the device is busy, for the finite model before it."""
    with on_the_meta_device() as watch:
        task = task_of(fedavg(), "meta", network="mlp")
        task = replace(task, stages=(replace(task.stages[0], rounds=8),), tune="off")
        waits = waits_of_rounds(watch, monkeypatch, Stacked, "train_chunks")
        run(task, captured(task))
    steps = [after - before for before, after in pairwise(waits)]
    assert steps[3:] == [2] * len(steps[3:])
    assert len(steps) == 7


@pytest.mark.slow
def test_a_pack_waits_once_and_once_for_each_run(monkeypatch: pytest.MonkeyPatch) -> None:
    with on_the_meta_device() as watch:
        tasks = [task_of(fedavg(), "meta", network="mlp", seed=seed) for seed in range(3)]
        tasks = [replace(t, stages=(replace(t.stages[0], rounds=8),), tune="off") for t in tasks]
        waits = waits_of_rounds(watch, monkeypatch, Pack, "train_side_by_side")
        engines = [captured(task) for task in tasks]
        ended: dict[int, Any] = {}
        runs = [rounds(task, engine) for task, engine in zip(tasks, engines, strict=True)]
        Pack(engines, captured_stack).train_runs(runs, ended.__setitem__)
    assert not [end for end in ended.values() if isinstance(end, BaseException)]
    steps = [after - before for before, after in pairwise(waits)]
    assert steps[3:] == [1 + 3] * len(steps[3:])
    assert len(steps) == 7
