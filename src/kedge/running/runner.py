"""The loop over stages and rounds; read this first.

A run is a pure function of its task: the engine trains, the server updates, the history gets one line a
round. Where a folder is given, everything is on disk as it happens, and a run killed at any moment goes
on exactly.
"""

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import safetensors.torch

from kedge.core.algorithm import Stage
from kedge.core.errors import CheckpointError, Diverged
from kedge.core.model import Model
from kedge.core.server import Reply, Server, broadcast, hand_over, opened, server_update
from kedge.core.tree import Leaves, cast, finite
from kedge.data.federation import Federation
from kedge.engines.engine import Engine, Order
from kedge.measure.evaluate import on_local_tests, on_test
from kedge.running import checkpoint
from kedge.running.folder import Lines, read_lines, write
from kedge.running.sampling import Participation

History = list[dict[str, Any]]


@dataclass(frozen=True, eq=False)
class Task:
    """All that decides the numbers of a run."""

    stages: Sequence[Stage]
    model: Model
    federation: Federation
    participation: Participation = Participation()
    seed: int = 0
    evaluate_every: int = 1
    on_divergence: Literal["stop", "drop"] = "stop"

    @property
    def rounds(self) -> int:
        """Rounds of all stages together."""
        return sum(stage.rounds for stage in self.stages)


@dataclass(eq=False)
class Observer:
    """Who watches: a line after every round, messages, and whether to stop after the round at hand."""

    line: Callable[[dict[str, Any]], None] = lambda line: None
    say: Callable[[str], None] = lambda message: None
    stop: Callable[[], bool] = lambda: False


@dataclass(eq=False)
class Progress:
    """Where a run stands."""

    server: Server
    round: int = 0  # rounds done
    stage: int = 0
    stage_round: int = 0
    history: History = field(default_factory=list)


class Interrupted(KeyboardInterrupt):
    """The run was asked to stop, and its state is saved."""


def run(
    task: Task,
    engine: Engine,
    folder: Path | None = None,
    checkpoint_every: int = 10,
    chosen: dict[str, Any] | None = None,
    observer: Observer | None = None,
) -> Progress:
    """Run all stages, from the newest checkpoint in the folder if there is one."""
    observer = observer or Observer()
    params, buffers = task.model.init(task.seed)
    like = task.federation.pool.x.device
    params, buffers = cast(params, task.federation.dtype, like), cast(buffers, task.federation.dtype, like)
    first = task.stages[0]
    progress = Progress(opened(first.algorithm, task.model, params, buffers))
    engine.begin(first, params, frozenset())
    saved = checkpoint.load(folder / "checkpoint", observer.say) if folder else None
    if saved:
        progress = restored(task, engine, params, saved, folder)
    lengths = saved.facts["lengths"] if saved else {}
    files = {
        name: Lines(folder / f"{name}.jsonl", lengths.get(name, 0))
        for name in ("history", "clients")
        if folder
    }
    try:
        while progress.stage < len(task.stages):
            stage = task.stages[progress.stage]
            if progress.stage_round == stage.rounds or ended_early(stage, progress):
                next_stage(task, engine, params, progress)
                continue
            line, by_client = one_round(task, engine, stage, progress, params, files)
            if files:
                files["history"].append(line)
                if by_client:
                    files["clients"].append(by_client)
            progress.history.append(line)
            stop = observer.stop() and not ends(task, progress)
            due = progress.round % checkpoint_every == 0 or stop or ends(task, progress)
            if folder and due:
                state = state_of(engine, progress, files, chosen)
                checkpoint.save(folder / "checkpoint", progress.round, state)
            observer.line(line)
            if stop:
                raise Interrupted
    finally:
        for file in files.values():
            file.close()
    if folder:
        write_models(folder, task, progress.server, params)
    return progress


def one_round(
    task: Task, engine: Engine, stage: Stage, progress: Progress, start: Leaves, files: dict[str, Lines]
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Sample, train, update, measure: the history's line and the clients' values."""
    began = time.perf_counter()
    algorithm, server, data = stage.algorithm, progress.server, task.federation
    clients = task.participation.sample(len(data.clients), task.seed, progress.round)
    order = Order(
        progress.round,
        progress.stage_round,
        task.seed,
        server.shared,
        server.buffers,
        broadcast(algorithm, server),
    )
    reply = engine.round(order, clients)
    line: dict[str, Any] = {"round": progress.round + 1, "stage": progress.stage, "method": algorithm.name}
    line |= {"clients": clients, "rejected": [r._asdict() for r in reply.rejected]}
    if reply.rejected and task.on_divergence == "stop":
        fail(line, reply, files)
    if reply.size:
        server = server_update(algorithm, server, reply, len(data.clients), progress.round)
        if not finite({"shared": server.shared, "buffers": server.buffers, "slots": server.slots}):
            fail(line, reply, files)
    trained = time.perf_counter() - began
    progress.server, progress.round, progress.stage_round = (
        server,
        progress.round + 1,
        progress.stage_round + 1,
    )
    line |= {k: number(v) for k, v in reply.metrics.items()}
    by_client: dict[str, Any] = {}
    if progress.round % task.evaluate_every == 0 or progress.round == task.rounds:
        metrics, by_client = measured(task, engine, stage, server, start)
        line |= {k: number(v) for k, v in metrics.items()}
        by_client = {"round": progress.round, **by_client} if by_client else {}
    samples = sum(len(data.clients[c]) for c in clients) * stage.local.epochs
    line["time"] = {
        "seconds": time.perf_counter() - began,
        "train_seconds": trained,
        "samples_per_second": samples / trained,
    }
    return line, by_client


def measured(
    task: Task, engine: Engine, stage: Stage, server: Server, start: Leaves
) -> tuple[dict[str, float], dict[str, list[float | None]]]:
    """The evaluation matrix: every model worth looking at, on the common and on the local tests."""
    algorithm, data, model = stage.algorithm, task.federation, task.model
    local = {k: v for k, v in start.items() if k not in server.shared}
    views = {"distributed": server.shared, "average": server.average}
    for c in algorithm.corrections:
        views |= c.views(server.shared, server.slots[c.name])
    metrics: dict[str, float] = {}
    by_client: dict[str, list[float | None]] = {}
    measured: dict[int, str] = {}
    for name, leaves in views.items():
        same = measured.get(id(leaves))
        if same:
            metrics |= {k.replace(same, name, 1): v for k, v in metrics.items() if k.startswith(same + ".")}
            by_client |= {
                k.replace(same, name, 1): v for k, v in by_client.items() if k.startswith(same + ".")
            }
            continue
        measured[id(leaves)] = name
        whole = {**local, **leaves}
        values = on_test(model, algorithm.predict, whole, server.buffers, data)
        own, each = on_local_tests(model, algorithm.predict, (whole, server.buffers), data)
        metrics |= {f"{name}.{k}": v for k, v in {**values, **own}.items()}
        by_client |= {f"{name}.local.accuracy": each} if each else {}
    if local:
        own, each = on_local_tests(
            model, algorithm.predict, lambda c: engine.personal(c, server.shared, server.buffers), data
        )
        metrics |= {f"personal.{k}": v for k, v in own.items()}
        by_client |= {"personal.local.accuracy": each} if each else {}
    return metrics, by_client


def number(value: float) -> float | None:
    """A value JSON can hold."""
    return value if math.isfinite(value) else None


def fail(line: dict[str, Any], reply: Reply, files: dict[str, Lines]) -> None:
    """End a diverging run: its last line says so, and the error names round, clients and method."""
    if files:
        files["history"].append({**line, "diverged": True})
    who = ", ".join(str(r.client) for r in reply.rejected) or "the server's update"
    raise Diverged(
        f"{line['method']} diverged in round {line['round']}: client {who} gave numbers that are not finite. "
        "Lower optimizer.lr, set training.clip, or leave such uploads out: training.on_divergence = 'drop'. "
        "The history up to this round is kept."
    )


def ends(task: Task, progress: Progress) -> bool:
    """Whether the round just done was the run's last."""
    stage = task.stages[progress.stage]
    last = progress.stage == len(task.stages) - 1
    return last and (progress.stage_round == stage.rounds or ended_early(stage, progress))


def ended_early(stage: Stage, progress: Progress) -> bool:
    """Whether the stage's criterion on its own history is met."""
    own = progress.history[len(progress.history) - progress.stage_round :]
    return bool(own) and stage.until is not None and stage.until(own)


def next_stage(task: Task, engine: Engine, params: Leaves, progress: Progress) -> None:
    """Hand over to the next stage, if there is one."""
    before = task.stages[progress.stage].algorithm
    progress.stage, progress.stage_round = progress.stage + 1, 0
    if progress.stage < len(task.stages):
        after = task.stages[progress.stage]
        progress.server, kept = hand_over(before, after.algorithm, progress.server, task.model, params)
        engine.begin(after, params, kept)


def state_of(
    engine: Engine, progress: Progress, files: dict[str, Lines], chosen: dict[str, Any] | None
) -> checkpoint.State:
    """What a checkpoint holds."""
    facts = {
        "round": progress.round,
        "stage": progress.stage,
        "stage_round": progress.stage_round,
        "lengths": {name: file.length() for name, file in files.items()},
        "chosen": chosen or {},
    }
    return checkpoint.State(facts, {"server": progress.server._asdict(), "clients": engine.save()})


def restored(
    task: Task, engine: Engine, params: Leaves, saved: checkpoint.State, folder: Path | None
) -> Progress:
    """The progress a checkpoint describes; the engine takes its clients' memories up."""
    facts = saved.facts
    tensors = checkpoint.same_device(saved.tensors, task.federation.pool.x)
    stage = task.stages[facts["stage"]]
    empty = opened(stage.algorithm, task.model, params, {})
    old = tensors["server"]
    if set(old["shared"]) != set(empty.shared):
        raise CheckpointError(f"the checkpoint in {folder} is of another model: its leaves differ.")
    names = (c.name for c in stage.algorithm.corrections)
    server = Server(
        shared=old["shared"],
        buffers=old.get("buffers", {}),
        slots={name: old.get("slots", {}).get(name, {}) for name in names},
        average=old["average"],
    )
    engine.begin(stage, params, frozenset(c.name for c in stage.algorithm.corrections))
    engine.load(tensors.get("clients", {}))
    lines = read_lines(folder / "history.jsonl") if folder else []
    return Progress(server, facts["round"], facts["stage"], facts["stage_round"], lines[: facts["round"]])


def write_models(folder: Path, task: Task, server: Server, params: Leaves) -> None:
    """The final distributed model, and the views beside it."""
    algorithm = task.stages[-1].algorithm
    views = {"model": server.shared, "average": server.average}
    for c in algorithm.corrections:
        views |= c.views(server.shared, server.slots[c.name])
    for name, leaves in views.items():
        whole = {**params, **leaves, **server.buffers, **dict(task.model.constants)}
        write(folder / f"{name}.safetensors", safetensors.torch.save(checkpoint.packed(whole)))
