"""The state of a run in a checkpoint: how it is collected, and how a run resumes from it."""

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import safetensors.torch

from kedge.config.task import Task
from kedge.core.algorithm import Stage, model_for
from kedge.core.errors import CheckpointError
from kedge.core.frozen import frozen_leaves
from kedge.core.lazy_tree import LazyTree
from kedge.core.model import Model
from kedge.core.server import Server, initial_server
from kedge.core.tree import Tree, flatten
from kedge.engines.engine import Engine
from kedge.running.folders import checkpoint
from kedge.running.folders.folder import read_lines
from kedge.running.progress import Progress
from kedge.running.recording.history import HistoryWriter, history_problem
from kedge.running.recording.round_costs import joined_clients


def load_newest(folder: Path, identity: str | None, say: Callable[[str], None]) -> checkpoint.State | None:
    """Load the newest checkpoint with this identity that matches the history files; None if none is saved."""

    def objection(state: checkpoint.State) -> str | None:
        saved_identity = state.facts.get("identity")  # version 0.1 saved none
        if identity and saved_identity and saved_identity != identity:
            return "it belongs to another run, with other settings"
        return history_problem(folder, state.facts)

    saved = checkpoint.load(folder / "checkpoint", say, objection)
    if saved is None:
        check_can_start(folder, say)
    return saved


def check_can_start(folder: Path, say: Callable[[str], None]) -> None:
    """Raise if a run without checkpoints has ended; report that it starts again if it has a history."""
    model, history = folder / "model.safetensors", folder / "history.jsonl"
    if model.is_file():
        raise CheckpointError(
            f"the run in {folder} has ended (it has {model.name}) and cannot resume: its history is "
            "damaged or has too few rounds, and it has no checkpoint. Restore its folder from a copy; "
            f"or delete {model} to run again from the start."
        )
    if history.is_file() and history.stat().st_size:
        say(f"{folder} has no checkpoint: the run starts again at round 1.")


def checkpoint_state(
    engine: Engine,
    progress: Progress,
    history: HistoryWriter,
    engine_settings: dict[str, Any] | None,
    identity: str | None = None,
) -> checkpoint.State:
    """The content of a checkpoint; `identity` is the digest of the run's identity."""
    files, late = history.files, history.late
    facts = {
        "round": progress.round,
        "stage": progress.stage,
        "stage_round": progress.stage_round,
        "lengths": {name: file.length() for name, file in files.items()},
        "sha256": {name: file.checksum() for name, file in files.items()},
        "chosen": engine_settings or {},
        **({"identity": identity} if identity else {}),
        **({"late": late.saved()} if late else {}),
    }
    return checkpoint.State(facts, {"server": progress.server._asdict(), "clients": engine.save()})


def restore_progress(task: Task, engine: Engine, saved: checkpoint.State, folder: Path | None) -> Progress:
    """Load the clients' memories of a checkpoint into the engine, and return the progress."""
    facts = saved.facts
    device = task.federation.pool.x.device
    if facts["stage"] >= len(task.stages):
        raise CheckpointError(
            f"the checkpoint in {folder} is of another run: it is in stage {facts['stage'] + 1}, and this "
            f"run has {len(task.stages)}."
        )
    stage = task.stages[facts["stage"]]
    old = checkpoint.on_device(saved.tensors["server"], device)
    if set(old["shared"]) != stage.algorithm.shared(model_for(stage.algorithm, task.model)):
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
    memories = saved.tensors.get("clients", {})
    engine.load(LazyTree(memories, lambda client: checkpoint.on_device(memories[client], device)))
    length = facts.get("lengths", {}).get("history")
    lines = read_lines(folder / "history.jsonl", length) if folder else []
    history = lines[: facts["round"]]
    late = [facts["late"]["values"]] if "late" in facts else []
    seen = frozenset(client for line in (*history, *late) for client in joined_clients(line))
    return Progress(server, facts["round"], facts["stage"], facts["stage_round"], seen, history)


def check_slots(task: Task, stage: Stage, saved: dict[str, Any], folder: Path | None) -> None:
    """Raise if a checkpoint lacks server state of the method of this stage."""
    initial = initial_server(stage.algorithm, task.model, *task.model.init(task.seed)).slots
    missing = [key for key in flatten(initial) if key not in flatten(saved.get("slots", {}))]
    if missing:
        raise CheckpointError(
            f"the checkpoint in {folder} is of another method than {stage.algorithm.name}: it has no "
            f"{missing[0]}. Resume with the method that the run started with."
        )


def trained_before(task: Task, saved: Tree) -> str:
    """A sentence to append to an error if parameters of the checkpoint are frozen now; else empty."""
    trained = [k for k in task.model.frozen if k in saved["shared"] or k in saved.get("own", {})]
    if not trained:
        return ""
    return (
        f" It trains {', '.join(trained)}, which have requires_grad=False in the given module: such "
        "parameters are not trained. Set requires_grad=True to resume this run, or start a new one."
    )


def frozen_digest(model: Model) -> str | None:
    """The sha256 of the frozen parameters with the module's values; None if no parameter is frozen."""
    leaves = frozen_leaves(model)
    return (
        hashlib.sha256(safetensors.torch.save(checkpoint.cpu_copies(leaves))).hexdigest() if leaves else None
    )


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
