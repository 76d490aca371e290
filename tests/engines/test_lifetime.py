"""Models of earlier rounds are freed while a device trains: a stack has the memory, not they."""

import weakref
from dataclasses import replace
from typing import Any

import pytest
from tests.engines.cuda.test_captured import captured, task_of
from tests.engines.recorded import on_the_cpu
from torch import Tensor

from kedge.algorithms import METHOD_FACTORIES, fedavg, scaffold
from kedge.config.task import Task
from kedge.core.tree import flatten
from kedge.engines.cuda.captured import captured_stack
from kedge.engines.engine import Order
from kedge.engines.pack.pack import Pack
from kedge.engines.stack.stacked import Stacked
from kedge.engines.sums import read_back
from kedge.running.runner import rounds, run

Refs = list[weakref.ref[Tensor]]


def long(task: Task) -> Task:
    """The task with eight rounds. Each round but the first is recorded while the next round trains."""
    return replace(task, stages=(replace(task.stages[0], rounds=8),), tune="off")


def refs_of(tree: Any) -> Refs:
    return [weakref.ref(v) for v in flatten(tree).values()]


@pytest.mark.parametrize("every", [1, 100], ids=["evaluated", "not evaluated"])
@pytest.mark.parametrize("method", ["fedavg", "scaffold", "feddyn", "fedavgm"])
def test_what_a_run_sent_before_is_freed(method: str, every: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """At once; if it is evaluated, before the host waits for the next round."""
    task = replace(long(task_of(METHOD_FACTORIES[method](), "cpu", network="mlp")), evaluate_every=every)
    sent: list[Refs] = []
    train = Stacked.train_chunks

    def check(refs: Refs) -> None:
        assert len(sent) < 4 or not [ref for ref in (*sent[0], *refs) if ref() is not None]

    def watched(self: Stacked, order: Order, clients: Any) -> Any:
        if every > 1 and sent:
            check(sent[-1])
        sent.append(refs_of({"shared": order.shared, "broadcast": order.broadcast}))
        return train(self, order, clients)

    def read(*given: Any) -> Any:
        if len(sent) > 1:
            check(sent[-2])
        return read_back(*given)

    monkeypatch.setattr(Stacked, "train_chunks", watched)
    monkeypatch.setattr("kedge.engines.stack.stacked.read_back", read)
    with on_the_cpu():
        run(task, captured(task))
    assert len(sent) == 8


@pytest.mark.parametrize("method", [fedavg, scaffold])
def test_a_pack_frees_what_its_runs_sent_before(method: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    tasks = [long(task_of(method(), "cpu", network="mlp", seed=seed)) for seed in range(3)]
    sent: list[Refs] = []
    train = Pack.train_side_by_side

    def watched(self: Pack, waiting: Any) -> Any:
        sent.append(
            [
                ref
                for one in waiting
                for ref in refs_of({"shared": one.order.shared, "broadcast": one.order.broadcast})
            ]
        )
        return train(self, waiting)

    def read(*given: Any) -> Any:
        if len(sent) > 3:
            assert not [ref for ref in (*sent[0], *sent[-2]) if ref() is not None]
        return read_back(*given)

    monkeypatch.setattr(Pack, "train_side_by_side", watched)
    monkeypatch.setattr("kedge.engines.pack.pack.read_back", read)
    with on_the_cpu():
        engines = [captured(task) for task in tasks]
        ended: dict[int, Any] = {}
        runs = [rounds(task, engine) for task, engine in zip(tasks, engines, strict=True)]
        Pack(engines, captured_stack).train_runs(runs, ended.__setitem__)
    assert not [end for end in ended.values() if isinstance(end, BaseException)]
    assert len(sent) == 8
