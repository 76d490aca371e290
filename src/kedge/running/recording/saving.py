"""The content of a checkpoint, resuming from one, and the final models."""

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import safetensors.torch

from kedge.config.task import Task
from kedge.core.algorithm import Algorithm, Stage, fitted
from kedge.core.errors import CheckpointError
from kedge.core.frozen import frozen_leaves
from kedge.core.model import Model
from kedge.core.server import Server, initial_server
from kedge.core.tree import Leaves, Tree, flatten
from kedge.engines.engine import Engine
from kedge.running.folders import checkpoint
from kedge.running.folders.folder import Lines, read_lines, write
from kedge.running.progress import Progress
from kedge.running.recording.history import history_problem


def load_newest(folder: Path, identity: str | None, say: Callable[[str], None]) -> checkpoint.State | None:
    """The newest checkpoint that has this identity and matches the histories; None without checkpoints."""

    def objection(state: checkpoint.State) -> str | None:
        whose = state.facts.get("identity")  # version 0.1 saved none
        if identity and whose and whose != identity:
            return "it belongs to another run, with other settings"
        return history_problem(folder, state.facts)

    saved = checkpoint.load(folder / "checkpoint", say, objection)
    if saved is None:
        check_may_begin(folder, say)
    return saved


def check_may_begin(folder: Path, say: Callable[[str], None]) -> None:
    """A run without checkpoints starts at round 1: report it if it has a history, raise if it has ended."""
    model, history = folder / "model.safetensors", folder / "history.jsonl"
    if model.is_file():
        raise CheckpointError(
            f"the run in {folder} has ended (it has {model.name}) and cannot resume: its history is "
            "damaged or has too few rounds, and it has no checkpoint. Restore its folder from a copy; "
            f"or delete {model} to run again from the start."
        )
    if history.is_file() and history.stat().st_size:
        say(f"{folder} has no checkpoint: the run starts again at round 1.")


def state_of(
    engine: Engine,
    progress: Progress,
    files: dict[str, Lines],
    chosen: dict[str, Any] | None,
    identity: str | None = None,
) -> checkpoint.State:
    """The content of a checkpoint; `identity` is the digest of the run's identity."""
    facts = {
        "round": progress.round,
        "stage": progress.stage,
        "stage_round": progress.stage_round,
        "lengths": {name: file.length() for name, file in files.items()},
        "sha256": {name: file.checksum() for name, file in files.items()},
        "chosen": chosen or {},
        **({"identity": identity} if identity else {}),
    }
    return checkpoint.State(facts, {"server": progress.server._asdict(), "clients": engine.save()})


def restored(task: Task, engine: Engine, saved: checkpoint.State, folder: Path | None) -> Progress:
    """The progress a checkpoint describes; the engine takes its clients' memories up."""
    facts = saved.facts
    tensors = checkpoint.same_device(saved.tensors, task.federation.pool.x)
    if facts["stage"] >= len(task.stages):
        raise CheckpointError(
            f"the checkpoint in {folder} is of another run: it is in stage {facts['stage'] + 1}, and this "
            f"run has {len(task.stages)}."
        )
    stage = task.stages[facts["stage"]]
    old = tensors["server"]
    if set(old["shared"]) != stage.algorithm.shared(fitted(stage.algorithm, task.model)):
        raise CheckpointError(
            f"the checkpoint in {folder} is of another model: its leaves differ.{trained_before(task, old)}"
        )
    check_slots(task, stage, old, folder)
    check_frozen(folder, task.model)
    names = (c.name for c in stage.algorithm.corrections)
    server = Server(
        shared=old["shared"],
        buffers=old.get("buffers", {}),
        slots={name: old.get("slots", {}).get(name, {}) for name in names},
        average=old["average"],
        own=old.get("own", {}),
    )
    engine.begin(
        stage, {**server.own, **server.shared}, frozenset(c.name for c in stage.algorithm.corrections)
    )
    engine.load(tensors.get("clients", {}))
    length = facts.get("lengths", {}).get("history")
    lines = read_lines(folder / "history.jsonl", length) if folder else []
    history = lines[: facts["round"]]
    seen = frozenset(client for line in history for client in line["clients"])
    return Progress(server, facts["round"], facts["stage"], facts["stage_round"], seen, history)


def check_slots(task: Task, stage: Stage, saved: dict[str, Any], folder: Path | None) -> None:
    """Raise if a checkpoint lacks server state of the method of this stage."""
    fresh = initial_server(stage.algorithm, task.model, *task.model.init(task.seed)).slots
    missing = [key for key in flatten(fresh) if key not in flatten(saved.get("slots", {}))]
    if missing:
        raise CheckpointError(
            f"the checkpoint in {folder} is of another method than {stage.algorithm.name}: it has no "
            f"{missing[0]}. Resume with the method that the run started with."
        )


def trained_before(task: Task, saved: Tree) -> str:
    """A sentence to append to an error if parameters of the checkpoint are frozen now; else empty."""
    both = [k for k in task.model.frozen if k in saved["shared"] or k in saved.get("own", {})]
    if not both:
        return ""
    return (
        f" It trains {', '.join(both)}, which have requires_grad=False in the given module: such "
        "parameters are not trained. Set requires_grad=True to resume this run, or start a new one."
    )


def last_algorithm(task: Task, progress: Progress) -> Algorithm:
    """The method of the last round; stages after it may never have begun."""
    return task.stages[min(progress.stage, len(task.stages) - 1)].algorithm


def whole(model: Model, server: Server, leaves: Leaves) -> Leaves:
    """These shared leaves with those a client begins with, without the heads that are added for each."""
    every = {**server.own, **leaves}
    names = [k for unit in model.units for k in unit]
    return {k: every[k] for k in [*names, *(k for k in leaves if k in model.extra)]}


def state_dict_of(model: Model, params: Leaves, buffers: Leaves) -> Leaves:
    """The complete state_dict of a model, including frozen parameters and integer buffers.

    It has the parameters first, in the network's order, and a tied tensor under each of its names.
    """
    every = {**params, **buffers, **dict(model.constants)}
    every |= {k: every[first] for k, first in model.tied if first in every}
    first = [k for k in (*model.parameters, *params) if k in every]
    return {k: every[k] for k in dict.fromkeys([*first, *every])}


def frozen_digest(model: Model) -> str | None:
    """The sha256 of the frozen parameters with the module's values; None if there are none."""
    leaves = frozen_leaves(model)
    return hashlib.sha256(safetensors.torch.save(checkpoint.packed(leaves))).hexdigest() if leaves else None


def check_frozen(folder: Path | None, model: Model) -> None:
    """Raise if the frozen parameters differ from those the run in `folder` started with."""
    file = folder / "environment.json" if folder else None
    if file is None or not file.is_file():
        return
    before, now = json.loads(file.read_text()).get("frozen"), frozen_digest(model)
    if before != now:
        raise CheckpointError(
            f"{folder}: the parameters with requires_grad=False have other values than when the run "
            f"started (sha256 {before}, now {now}). Checkpoints do not contain them: load the original "
            "values into the module, or start a new run."
        )


def write_models(folder: Path, task: Task, progress: Progress) -> None:
    """The final distributed model, and the views beside it."""
    server = progress.server
    found = {"model": server.shared, "average": server.average}
    for c in last_algorithm(task, progress).corrections:
        found |= c.views(server.shared, server.slots[c.name])
    for name, leaves in found.items():
        every = state_dict_of(task.model, whole(task.model, server, leaves), server.buffers)
        write(folder / f"{name}.safetensors", safetensors.torch.save(checkpoint.packed(every)))
