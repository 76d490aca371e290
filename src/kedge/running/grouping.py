"""Which runs may train side by side, and how many of them fit into memory.

They must have the network, data, training and engine in common, and all that makes the program of a step:
what a client's steps compute by method and schedule, the kind of optimizer, what is watched. The server's
rules, seed, learning rate, partition, participation, rounds and evaluation are each run's own. Runs of
different programs would only wait for each other.
"""

import json
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, Literal, NamedTuple

from kedge.algorithms import METHODS, SCHEDULES
from kedge.config.assemble import algorithm_of
from kedge.config.experiment import Experiment
from kedge.config.task import Task
from kedge.core.algorithm import Stage, fitted
from kedge.core.client import step_part
from kedge.core.errors import RequestError
from kedge.core.tree import flatten, only
from kedge.engines.choose import COPIES, parameter_count, rows_at_once
from kedge.engines.memory import Memories
from kedge.running.execute import recorded
from kedge.running.folders.sources import CodeChoice

MOST = {"cpu": 8, "cuda": 32}  # runs of a pack, unless told otherwise: more gain little
TENSORS = ("lr", "decay")  # settings of an optimizer that do not change the program of a step


class Member(NamedTuple):
    """A run to be carried out, and whether it begins, replaces what lies in its folder, or goes on."""

    folder: Path
    experiment: Experiment
    start: Literal["new", "anew", "on"] = "new"
    code: CodeChoice = "same"  # the version of the user's own code that a resumed run executes

    @property
    def engine(self) -> dict[str, Any] | None:
        """What a run that goes on began with."""
        return recorded(self.folder) if self.start == "on" else None


def groups(members: Iterable[Member]) -> list[list[Member]]:
    """Those that may train side by side, in the order of their first ones.

    The engine a run began with holds when it goes on; runs that have not begun join the first that has.
    """
    found: list[list[Member]] = []
    every = list(members)
    for group in alike(every, [kind(member.experiment) for member in every]):
        engines = [settings(member.engine) for member in group]
        first = next(filter(None, engines), "")
        found += alike(group, [engine or first for engine in engines])
    return found


def alike(members: Sequence[Member], keys: Sequence[Hashable]) -> list[list[Member]]:
    """Members with the same key, together."""
    found: dict[Hashable, list[Member]] = {}
    for member, key in zip(members, keys, strict=True):
        found.setdefault(key, []).append(member)
    return list(found.values())


def settings(engine: dict[str, Any] | None) -> str:
    """An engine as far as it must be the same; empty where none was chosen yet."""
    return json.dumps({k: v for k, v in engine.items() if k not in ("packed", "reason")}) if engine else ""


def kind(experiment: Experiment) -> tuple[Hashable, ...]:
    """What the runs of a pack have in common."""
    common = {
        "model": experiment.model,
        "data": experiment.data,
        "training": asdict(experiment.training),
        "engine": asdict(experiment.engine),
        "rules": [rule for *_, rule in experiment.stages],
        "optimizer": {k: v for k, v in experiment.optimizer.items() if k not in TENSORS},
        "watched": [experiment.evaluation.all, experiment.measure.drift, experiment.measure.spread],
    }
    steps = [step_key(method, schedule) for method, schedule, *_ in experiment.stages]
    return (json.dumps(common, sort_keys=True), *steps)


def step_key(method: dict[str, Any], schedule: dict[str, Any]) -> Hashable:
    """A value that is equal for methods and schedules whose steps are the same program.

    Your own code is compared by its name and arguments, and so is a method with wrong arguments: the run that
    uses them raises the error.
    """
    tables = json.dumps([method, schedule], sort_keys=True)
    if method["name"] not in METHODS or schedule["name"] not in SCHEDULES:
        return tables
    try:
        return step_part(algorithm_of(method, schedule))
    except RequestError:
        return tables


def fitting(task: Task, chunk: int = 0) -> int:
    """How many runs like this may train at once, by what a round's rows and its clients' memories take.

    `chunk` is the user's word on how many clients may.
    """
    population = len(task.federation.clients)
    rows = float(task.participation.count(population))
    there = chunk or rows_at_once(task.model, task.federation)
    if not chunk:
        kept = max(numbers_kept(task, stage) for stage in task.stages)
        rows += population * kept / (COPIES * parameter_count(task.model))
    return max(1, min(MOST[task.federation.pool.x.device.type], int(there / rows)))


def numbers_kept(task: Task, stage: Stage) -> int:
    """How many numbers a client remembers from round to round."""
    model, memories = fitted(stage.algorithm, task.model), Memories()
    params, buffers = model.init(0)
    memories.begin(stage.algorithm, model, params, frozenset())
    own = memories.of(0, only(params, memories.shared), buffers)
    statistics = own["buffers"] if model.statistics == "local" else {}
    kept = {"slots": own["slots"], "local": only(params, memories.kept), "buffers": statistics}
    return sum(v.numel() for v in flatten(kept).values())


def shares(count: int, most: int) -> int:
    """The size of equal packs of at most `most`."""
    return -(-count // -(-count // most))
