"""The record of a kedge.train call in its run's folder, and the comparison with a resumed call."""

import tomllib
from collections.abc import Sequence
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Any

import tomli_w
from torch import nn

from kedge.config.experiment import Experiment
from kedge.config.task import Task
from kedge.config.train_arguments import Method
from kedge.core.algorithm import Stage
from kedge.core.errors import RequestError
from kedge.running.folders.identity import (
    Identity,
    call_identity,
    check_identity,
    differences,
    raise_differences,
)
from kedge.running.folders.marker import read_marker
from kedge.running.folders.sources import colon_names

ANOTHER_CALL = (
    "Call kedge.train with the arguments of the first call; only rounds, engine, device, compile, "
    "checkpoint_every and progress may differ. For a new run, choose another folder with out."
)


def train_identity(
    task: Task, stages: Sequence[Stage], method: Method, experiment: Experiment, module: nn.Module
) -> Identity:
    """The identity of a run of kedge.train. The user's own code is compared by its files, not by value."""
    tables = [{"method": table, "schedule": schedule} for table, schedule, *_ in experiment.stages]
    has_user_code = isinstance(method, str) and any(colon_names(tables))
    first_method = method if isinstance(method, str) and has_user_code else stages[0].algorithm
    further: dict[str, Any] = {}
    if len(stages) > 1:
        starts = accumulate(stage.rounds for stage in stages)
        further["then"] = [
            {
                "at": start,
                "when": before.until,
                "method": None if has_user_code else stage.algorithm,
                "local": stage.local if stage.local != stages[0].local else None,
            }
            for start, (before, stage) in zip(starts, pairwise(stages), strict=False)
        ]
    if stages[-1].until:
        further["until"] = stages[-1].until
    if experiment.evaluation.local_test:
        further["local_test"] = experiment.evaluation.local_test
    training, evaluation = experiment.training, experiment.evaluation
    return call_identity(task, first_method, module, units=training.units, all=evaluation.all, **further)


def check_same_call(folder: Path, identity: Identity, task: Task, module: nn.Module) -> None:
    """Raise if the run in a folder was started by another call, or not by kedge.train."""
    config = folder / "config.toml"
    if not config.is_file():
        raise RequestError(
            f"out = {str(folder)!r} is not the folder of a run: it has no {config.name}. Leave resume out to "
            "start a run in a new folder."
        )
    if read_marker(folder) is None:  # version 0.1 saved only these keys
        first = tomllib.loads(config.read_text())
        now = tomllib.loads(call_record(task, module))
        compared = ("call", "module", "seed", "clients")
        found = differences({k: first.get(k) for k in compared}, {k: now[k] for k in compared})
        raise_differences(folder, found, ANOTHER_CALL)
    check_identity(folder, identity, ANOTHER_CALL)


def call_record(task: Task, module: nn.Module) -> str:
    """The config.toml of a run of kedge.train: a record; the run is resumed by the same call."""
    first, *later = task.stages
    stages = {"then": [{"rounds": stage.rounds, "method": repr(stage.algorithm)} for stage in later]}
    return tomli_w.dumps(
        {
            "name": "train",
            "call": "kedge.train",
            "module": type(module).__name__,
            "rounds": task.rounds,
            "seed": task.seed,
            "clients": len(task.federation.clients),
            "method": repr(first.algorithm),
            "local": repr(first.local),
            "participation": repr(task.participation),
            **(stages if later else {}),
        }
    )
