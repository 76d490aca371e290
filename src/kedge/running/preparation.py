"""Prepare a run for its first round: create or open its folder, lock it, share data with other runs."""

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace
from typing import NamedTuple

from kedge.config.experiment import Experiment
from kedge.config.task import Task
from kedge.core.errors import RequestError
from kedge.core.frozen import same_frozen, with_frozen
from kedge.core.model import Model
from kedge.data.federation import Federation
from kedge.engines.pack.joining import same_samples
from kedge.running.execute import create_run, load_run
from kedge.running.folders.folder import locked
from kedge.running.folders.identity import differences, experiment_identity
from kedge.running.requests import RunRequest


class PreparedRun(NamedTuple):
    """A run that can train: its folder exists and is locked."""

    request: RunRequest
    task: Task


def prepare_run(request: RunRequest, others: Sequence[PreparedRun], locks: ExitStack) -> PreparedRun:
    """Prepare a run; it shares equal samples and frozen parameters with the runs `others`."""
    if request.start == "resume":
        locks.enter_context(locked(request.folder))
        experiment, task = load_run(request.folder, request.code)
        check_matches_list(request, experiment)
    else:
        task = create_run(request.experiment, request.folder, request.start == "replace", locks)
    data = with_shared_samples(task.federation, [other.task.federation for other in others])
    model = with_shared_frozen(task.model, [other.task.model for other in others])
    return PreparedRun(request, replace(task, federation=data, model=model))


def with_shared_samples(data: Federation, others: Sequence[Federation]) -> Federation:
    """The federation, with the pool and test set of another federation if they have equal samples."""
    for other in others:
        if data.pool is not other.pool and same_samples(data.pool, other.pool):
            data = replace(data, pool=other.pool)
        if data.test and other.test and data.test is not other.test and same_samples(data.test, other.test):
            data = replace(data, test=other.test)
    return data


def with_shared_frozen(model: Model, others: Sequence[Model]) -> Model:
    """The model, with the frozen parameters of another model if they are equal."""
    if model.frozen:
        for other in others:
            if same_frozen(model, other):
                return with_frozen(model, other.frozen)
    return model


def check_matches_list(request: RunRequest, found: Experiment) -> None:
    """Raise if the experiment `found` in a run's folder is not the experiment of the request."""
    changed = differences(experiment_identity(request.experiment), experiment_identity(found))
    if changed:
        raise RequestError(
            f"the run in {request.folder} is not the one that is listed for this folder: "
            f"{'; '.join(changed)}. Undo the changes in {request.folder / 'config.toml'}; or remove the "
            "folder to start the run again."
        )
