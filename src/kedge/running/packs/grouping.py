"""Groups of runs that can train in one pack, and the number of runs that fit into memory.

Runs of a pack have the same network, data, training settings and engine. They also have the same program of
an optimizer step: method and schedule of the clients, kind of optimizer, measurements. Server rules, seed,
learning rate, partition, participation, rounds and evaluation may differ. Runs with different programs gain
nothing in one pack, because one run's steps would wait for the other's.
"""

import json
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import asdict
from typing import Any

from kedge.algorithms import METHOD_REGISTRY, SCHEDULE_REGISTRY
from kedge.config.experiment import Experiment, combined_methods
from kedge.config.stages import algorithm_of
from kedge.config.task import Task
from kedge.core.algorithm import Stage, model_for
from kedge.core.client import step_part
from kedge.core.errors import RequestError
from kedge.core.tree import flatten, only
from kedge.engines.choice.capacity import COPIES, parameter_count, rows_at_once
from kedge.engines.memory import Memories
from kedge.running.requests import RunRequest

MOST = {"cpu": 8, "cuda": 32}  # runs of a pack, unless the user sets a limit; more runs gain little
TENSORS = ("lr", "decay")  # settings of an optimizer that do not change the program of a step
CLIPPING = ("clip", "adaptive", "quantile", "clip_rate")  # settings of [privacy] that clients' programs have


def groups(requests: Iterable[RunRequest]) -> list[list[RunRequest]]:
    """The runs in groups that can train in one pack each; groups are in the order of their first runs.

    A resumed run keeps its engine. New runs use the first engine that a resumed run of their group has.
    """
    result: list[list[RunRequest]] = []
    requests = list(requests)
    for group in grouped(requests, [program_key(request.experiment) for request in requests]):
        engines = [engine_key(request.engine_settings) for request in group]
        first_chosen = next(filter(None, engines), "")
        result += grouped(group, [engine or first_chosen for engine in engines])
    return result


def grouped(requests: Sequence[RunRequest], keys: Sequence[Hashable]) -> list[list[RunRequest]]:
    """The requests in groups with equal keys."""
    by_key: dict[Hashable, list[RunRequest]] = {}
    for request, key in zip(requests, keys, strict=True):
        by_key.setdefault(key, []).append(request)
    return list(by_key.values())


def engine_key(settings: dict[str, Any] | None) -> str:
    """The engine settings that must be equal in a pack; empty if no engine was chosen yet."""
    ignored = ("packed", "reason")
    return json.dumps({k: v for k, v in settings.items() if k not in ignored}) if settings else ""


def program_key(experiment: Experiment) -> tuple[Hashable, ...]:
    """The settings of an experiment that must be equal in a pack."""
    common = {
        "model": experiment.model,
        "data": experiment.data,
        "training": asdict(experiment.training),
        "engine": asdict(experiment.engine),
        "rules": [rule for *_, rule in experiment.stages],
        "optimizer": {k: v for k, v in experiment.optimizer.items() if k not in TENSORS},
        "clipping": [getattr(experiment.privacy, key) for key in CLIPPING],
        "watched": [experiment.evaluation.all, experiment.measure.drift, experiment.measure.spread],
    }
    steps = [step_key(method, schedule) for method, schedule, *_ in experiment.stages]
    return (json.dumps(common, sort_keys=True), *steps)


def step_key(method: dict[str, Any], schedule: dict[str, Any]) -> Hashable:
    """A value that is equal for methods and schedules whose steps are the same program.

    The user's own code is compared by its name and arguments. So is a method with wrong arguments, whose run
    raises the error later.
    """
    tables = json.dumps([method, schedule], sort_keys=True)
    names = {table["name"] for table in combined_methods(method)}
    if not names <= set(METHOD_REGISTRY) or schedule["name"] not in SCHEDULE_REGISTRY:
        return tables
    try:
        return step_part(algorithm_of(method, schedule))
    except RequestError:
        return tables


def runs_that_fit(task: Task, chunk: int = 0) -> int:
    """The number of runs like `task` that fit into memory, with a round's rows and all clients' memories.

    `chunk` is the user's limit on the clients that train at once; 0: no limit.
    """
    population = len(task.federation.clients)
    rows = float(task.participation.count(population))
    room = chunk or rows_at_once(task.model, task.federation)
    if not chunk:
        kept = max(kept_values(task, stage) for stage in task.stages)
        rows += population * kept / (COPIES * parameter_count(task.model))
    return max(1, min(MOST[task.federation.pool.x.device.type], int(room / rows)))


def kept_values(task: Task, stage: Stage) -> int:
    """The number of tensor elements in a client's memory."""
    model, memories = model_for(stage.algorithm, task.model), Memories()
    params, buffers = model.init(0)
    memories.begin(stage.algorithm, model, params, frozenset())
    state = memories.of(0, only(params, memories.shared), buffers)
    statistics = state["buffers"] if model.statistics == "local" else {}
    kept = {"slots": state["slots"], "local": only(params, memories.kept), "buffers": statistics}
    return sum(v.numel() for v in flatten(kept).values())


def even_pack_size(count: int, most: int) -> int:
    """The size of the largest pack if `count` runs are divided evenly, with at most `most` runs in a pack."""
    packs = -(-count // most)
    return -(-count // packs)
