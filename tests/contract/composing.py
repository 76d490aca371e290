"""Combinations of methods, schedules and stages as in a configuration, and runs of them."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from inspect import signature
from pathlib import Path
from typing import Any

import pytest
from tests.contract.problem import PLAIN, distance, federation, network
from tests.contract.resuming import stop_after

from kedge.algorithms import SCHEDULE_FACTORIES
from kedge.audit.recorded_run import FixedCohorts
from kedge.audit.training import run_state
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
from kedge.engines.stack.stacked import Stacked
from kedge.running.progress import Interrupted, Observer
from kedge.running.runner import run

MakeEngine = Callable[[Model, Federation], Engine]
ENGINES: tuple[MakeEngine, MakeEngine] = (Sequential, Stacked)
LOCAL = LocalTraining(2, 4, SGD(0.1, weight_decay=1e-2, decay=0.9), clip=1.0)
# Around a switch after two rounds: client 1 trains before and after it, 3 with a pause, 0 and 2 on one side.
COHORTS = FixedCohorts(cohorts=((0, 1), (1, 3), (1, 2), (2, 3)))
ROUNDS = 3  # in which a thawing schedule opens all units
SAME_NETWORK = {"moon": {"projection": 0}}  # arguments with which a method does not change the network
REFUSED = {("fix-last", "fedrod"), ("fix-last-two", "fedrod")}  # pairs that raise an error


def compose(method: str, schedule: str = "all", **options: Any) -> Algorithm:
    """A method under a schedule, both with their defaults, made by the code that a configuration uses."""
    table = factory_table("method", {"name": method, **options})
    own: dict[str, Any] = {}
    if "thaw" in signature(SCHEDULE_FACTORIES[schedule]).parameters:  # the default is for one network only
        base = len(network("batch", of=algorithm_of(table, {"name": "all"})).units) - 1
        own = {"thaw": [-(-ROUNDS * unit // base) for unit in range(base)]}
    return algorithm_of(table, factory_table("schedule", {"name": schedule, **own}))


def for_a_stage(method: str, schedule: str = "all") -> Algorithm:
    """The same without a change of the network, so that it can be one of several stages."""
    return compose(method, schedule, **SAME_NETWORK.get(method, {}))


def combine(*methods: Algorithm) -> Algorithm:
    """The first method, with the corrections of all."""
    corrections = tuple(c for method in methods for c in method.corrections)
    return replace(methods[0], name=" & ".join(m.name for m in methods), corrections=corrections)


def task_of(
    methods: Sequence[Algorithm],
    rounds: Sequence[int],
    statistics: Statistics = "shared",
    local: LocalTraining = LOCAL,
) -> Task:
    """The methods as stages, on a network with batch norm, assembled and checked as an experiment is.

    Clients have local test sets, so that personal and fine-tuned models are measured too.
    """
    stages = [Stage(one, count, local) for one, count in zip(methods, rounds, strict=True)]
    plain = network("batch", statistics, of=replace(PLAIN, rebuild=common_rebuild(stages)))
    model = adapted_model(plain, stages)
    check_schedules(stages, model)
    data = federation()
    data = replace(data, local_tests=tuple(own[:2] for own in data.clients))
    return Task(stages, model, data, COHORTS)


class FinishedRun:
    """A run until its end: engine, server, all state, and the history without times."""

    def __init__(self, task: Task, kind: MakeEngine, folder: Path | None = None, stop: int = 0) -> None:
        self.engine = kind(task.model, task.federation)
        observer = stop_after(stop) if stop else Observer()
        progress = run(task, self.engine, folder, observer=observer)
        self.server = progress.server
        self.state: dict[str, Tree] = run_state(progress.server, self.engine)
        self.history: History = [{k: v for k, v in line.items() if k != "time"} for line in progress.history]


def assert_resumes(task: Task, whole: FinishedRun, kind: MakeEngine, folder: Path, after: int) -> None:
    """A run that is stopped after `after` rounds and resumed ends with the bits of the run `whole`."""
    with pytest.raises(Interrupted):
        FinishedRun(task, kind, folder, stop=after)
    resumed = FinishedRun(task, kind, folder)
    assert resumed.history == whole.history
    assert distance(resumed.state, whole.state) == 0


def history_difference(first: History, second: History) -> float:
    """The largest difference of the numbers in two histories. Everything else must be equal."""
    gaps = [0.0]
    for left, right in zip(first, second, strict=True):
        assert list(left) == list(right)
        for k, v in left.items():
            if isinstance(v, float) and isinstance(right[k], float):
                gaps.append(abs(v - right[k]) / max(1.0, abs(v)))
            else:
                assert v == right[k]
    return max(gaps)
