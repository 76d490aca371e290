"""Methods, schedules and stages put together as a configuration does it, and runs of them side by side."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from inspect import signature
from pathlib import Path
from typing import Any

import pytest
from tests.contract.problem import PLAIN, distance, everything, federation, network

from kedge.algorithms import SCHEDULE_FACTORIES
from kedge.audit.recorded_run import FixedCohorts
from kedge.config.checks import check_schedules
from kedge.config.experiment import factory_table
from kedge.config.stages import adapted_model, algorithm_of, common_rebuild
from kedge.config.task import History, Task
from kedge.core.algorithm import Algorithm, LocalTraining, Stage
from kedge.core.model import Model, Statistics
from kedge.core.optimizers import SGD
from kedge.core.tree import Tree
from kedge.data.federation import Federation
from kedge.engines.engine import Engine
from kedge.engines.sequential import Sequential
from kedge.engines.stacked import Stacked
from kedge.running.progress import Interrupted, Observer
from kedge.running.runner import run

Kind = Callable[[Model, Federation], Engine]
ENGINES: tuple[Kind, Kind] = (Sequential, Stacked)
LOCAL = LocalTraining(2, 4, SGD(0.1, weight_decay=1e-2, decay=0.9), clip=1.0)
# Before a switch after two rounds and after it: client 1 is asked in both, 3 with a rest, 0 and 2 in one.
COHORTS = FixedCohorts(cohorts=((0, 1), (1, 3), (1, 2), (2, 3)))
ROUNDS = 3  # over which a thawing schedule opens its units
AS_IT_IS = {"moon": {"projection": 0}}  # no network of its own: other stages may follow
REFUSED = {("fix-last", "fedrod"), ("fix-last-two", "fedrod")}  # pairs that make no sense


def composed(method: str, schedule: str = "all", **options: Any) -> Algorithm:
    """A method under a schedule, each with its defaults, by the path a configuration takes."""
    table = factory_table("method", {"name": method, **options})
    own: dict[str, Any] = {}
    if "thaw" in signature(SCHEDULE_FACTORIES[schedule]).parameters:  # its default fits one network only
        base = len(network("batch", of=algorithm_of(table, {"name": "all"})).units) - 1
        own = {"thaw": [-(-ROUNDS * unit // base) for unit in range(base)]}
    return algorithm_of(table, factory_table("schedule", {"name": schedule, **own}))


def one_of_several(method: str, schedule: str = "all") -> Algorithm:
    """The same on the network as it is, so that it can be one of several stages."""
    return composed(method, schedule, **AS_IT_IS.get(method, {}))


def together(*methods: Algorithm) -> Algorithm:
    """The first method with the corrections of all."""
    corrections = tuple(c for method in methods for c in method.corrections)
    return replace(methods[0], name=" & ".join(m.name for m in methods), corrections=corrections)


def task_of(
    methods: Sequence[Algorithm],
    rounds: Sequence[int],
    statistics: Statistics = "shared",
    local: LocalTraining = LOCAL,
) -> Task:
    """These methods one after another on a network with batch norm, assembled and checked as an experiment.

    Clients have local tests, so that personal and fine-tuned models are measured too.
    """
    stages = [Stage(one, count, local) for one, count in zip(methods, rounds, strict=True)]
    plain = network("batch", statistics, of=replace(PLAIN, rebuild=common_rebuild(stages)))
    model = adapted_model(plain, stages)
    check_schedules(stages, model)
    data = federation()
    data = replace(data, local_tests=tuple(own[:2] for own in data.clients))
    return Task(stages, model, data, COHORTS)


class Ran:
    """A run at its end: its engine, its server, all its state, and its history without the times."""

    def __init__(self, task: Task, kind: Kind, folder: Path | None = None, stop: int = 0) -> None:
        self.engine = kind(task.model, task.federation)
        left = iter(range(stop - 1, -1, -1))
        observer = Observer(stop=lambda: next(left, None) == 0)
        progress = run(task, self.engine, folder, observer=observer)
        self.server = progress.server
        self.state: dict[str, Tree] = everything(progress.server, self.engine)
        self.history: History = [{k: v for k, v in line.items() if k != "time"} for line in progress.history]


def resumes(task: Task, through: Ran, kind: Kind, folder: Path, after: int) -> None:
    """Stopped after some rounds and taken up again, a run ends as the one that went through, to the bit."""
    with pytest.raises(Interrupted):
        Ran(task, kind, folder, stop=after)
    again = Ran(task, kind, folder)
    assert again.history == through.history
    assert distance(again.state, through.state) == 0


def apart(one: History, other: History) -> float:
    """The largest difference of two histories' numbers; all else in them must be the same."""
    gaps = [0.0]
    for left, right in zip(one, other, strict=True):
        assert list(left) == list(right)
        for k, v in left.items():
            if isinstance(v, float) and isinstance(right[k], float):
                gaps.append(abs(v - right[k]) / max(1.0, abs(v)))
            else:
                assert v == right[k]
    return max(gaps)
