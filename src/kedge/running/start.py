"""The state that a run starts from: its first round, or the newest checkpoint in its folder."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from kedge.config.task import Task
from kedge.core.errors import RequestError
from kedge.core.server import initial_server
from kedge.core.tree import tree_to
from kedge.engines.engine import Engine
from kedge.running.folders.identity import digest_in
from kedge.running.progress import Progress
from kedge.running.recording.run_state import load_newest, restore_progress


class Start(NamedTuple):
    """The state that a run starts from."""

    progress: Progress
    lengths: dict[str, int]  # of each history file, in bytes, up to this state
    identity: str | None  # the digest of the run's identity, for its checkpoints
    late: dict[str, Any] | None = None  # the line of the newest round, if it waits for metrics of clients


def start_run(task: Task, engine: Engine, folder: Path | None, say: Callable[[str], None]) -> Start:
    """Start the first stage on the engine, or restore the newest checkpoint in `folder`."""
    identity = digest_in(folder)
    saved = load_newest(folder, identity, say) if folder else None
    if saved:
        progress = restore_progress(task, engine, saved, folder)
        check_rounds(task, progress, folder)
        return Start(progress, saved.facts["lengths"], identity, saved.facts.get("late"))
    first, data = task.stages[0], task.federation
    params, buffers = (tree_to(v, data.dtype, data.pool.x.device) for v in task.model.init(task.seed))
    engine.begin(first, params, frozenset())
    return Start(Progress(initial_server(first.algorithm, task.model, params, buffers)), {}, identity)


def check_rounds(task: Task, progress: Progress, folder: Path | None) -> None:
    """Raise if a resumed run has already trained more rounds than `rounds`, or than its stage, allows."""
    reached, most = progress.round, task.end(progress.stage)
    if reached > task.rounds:
        raise RequestError(
            f"rounds = {task.rounds}: the run in {folder} has reached round {reached}. Set rounds to at "
            f"least {reached}, or start a new run in another folder."
        )
    if reached > most:
        raise RequestError(
            f"rounds = {task.rounds}: stage {progress.stage + 1} of {len(task.stages)} "
            f"({task.stages[progress.stage].algorithm.name}) then ends after round {most}, but the run in "
            f"{folder} has reached round {reached} in it. Set rounds higher, or start a new run in another "
            "folder."
        )
