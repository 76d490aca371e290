"""Prepare a run for its first round: make or open its folder, lock it, share data with other runs."""

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace
from typing import NamedTuple

from kedge.config.experiment import Experiment
from kedge.config.task import Task
from kedge.core.errors import RequestError
from kedge.core.frozen import same_frozen, with_frozen
from kedge.engines.pack.joining import same
from kedge.running.execute import begun, taken_up
from kedge.running.folders.folder import locked
from kedge.running.folders.identity import differences, experiment_identity
from kedge.running.grouping import Member


class Ready(NamedTuple):
    """A run that is ready to train: its folder exists and is locked."""

    member: Member
    task: Task


def make_ready(member: Member, others: Sequence[Ready], locks: ExitStack) -> Ready:
    """Prepare a run; it shares equal samples and frozen parameters with the runs `others`."""
    if member.start == "on":
        locks.enter_context(locked(member.folder))
        experiment, task = taken_up(member.folder, member.code)
        check_matches_list(member, experiment)
    else:
        task = begun(member.experiment, member.folder, member.start == "anew", locks)
    data = task.federation
    for other in (one.task.federation for one in others):
        if data.pool is not other.pool and same(data.pool, other.pool):
            data = replace(data, pool=other.pool)
        if data.test and other.test and data.test is not other.test and same(data.test, other.test):
            data = replace(data, test=other.test)
    model = task.model
    for known in (one.task.model for one in others):
        if model.frozen and same_frozen(model, known):
            model = with_frozen(model, known.frozen)
            break
    return Ready(member, replace(task, federation=data, model=model))


def check_matches_list(member: Member, there: Experiment) -> None:
    """Raise if the run in a folder is not the one that the list of runs names for it."""
    found = differences(experiment_identity(member.experiment), experiment_identity(there))
    if found:
        raise RequestError(
            f"the run in {member.folder} is not the one that is listed for this folder: {'; '.join(found)}. "
            f"Undo the changes in {member.folder / 'config.toml'}; or remove the folder to start the run "
            "again."
        )
