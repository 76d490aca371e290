"""The loop over stages and rounds; read this first.

A run is a pure function of its task: the engine trains, the server updates, the history gets one line a
round. Where a folder is given, everything is on disk as it happens, and a run killed at any moment goes
on exactly.

An engine that evaluates beside what it trains is given the next round before the numbers of the last are
asked for; that line is then written when the next round is done, unless somebody needs it before.
"""

import time
from pathlib import Path
from typing import Any

from kedge.core.algorithm import Stage
from kedge.core.errors import Diverged
from kedge.core.server import Reply, broadcast, hand_over, opened, server_update
from kedge.core.tree import cast, finite
from kedge.engines.engine import Asked, Asking, Engine, Order, answered
from kedge.measure.evaluate import HeldOut
from kedge.running import checkpoint
from kedge.running.costing import Ledger, Place
from kedge.running.history import Entry, Scribe
from kedge.running.measuring import evaluates, measured, number
from kedge.running.probing import before_round, drift
from kedge.running.saver import Saver
from kedge.running.saving import restored, state_of, write_models
from kedge.running.task import Interrupted, Observer, Progress, Task


def run(
    task: Task,
    engine: Engine,
    folder: Path | None = None,
    checkpoint_every: int = 10,
    chosen: dict[str, Any] | None = None,
    observer: Observer | None = None,
) -> Progress:
    """Run all stages, from the newest checkpoint in the folder if there is one."""
    return answered(asking(task, engine, folder, checkpoint_every, chosen, observer), engine.round)


def asking(
    task: Task,
    engine: Engine,
    folder: Path | None = None,
    checkpoint_every: int = 10,
    chosen: dict[str, Any] | None = None,
    observer: Observer | None = None,
) -> Asking[Progress]:
    """The run, which asks for its rounds: who carries it out has them trained, on this engine or another."""
    observer = observer or Observer()
    params, buffers = task.model.init(task.seed)
    like = task.federation.pool.x.device
    params, buffers = cast(params, task.federation.dtype, like), cast(buffers, task.federation.dtype, like)
    first = task.stages[0]
    progress = Progress(opened(first.algorithm, task.model, params, buffers))
    engine.begin(first, params, frozenset())
    saved = checkpoint.load(folder / "checkpoint", observer.say) if folder else None
    if saved:
        progress = restored(task, engine, saved, folder)
    ledger, tests = Ledger(task, progress.history), HeldOut(task.federation)
    saver = Saver(folder / "checkpoint", engine.beside) if folder else None
    scribe = Scribe(folder, saved.facts["lengths"] if saved else {}, progress.history, observer)
    try:
        while progress.stage < len(task.stages):
            stage = task.stages[progress.stage]
            if stage.until and progress.round == task.rounds:
                break  # its rule was not met in time: the stage that waits for it never begins
            if stage_over(task, progress):
                next_stage(task, engine, progress)
                continue
            at = Place(progress.stage, progress.round, progress.stage_round)
            entry = yield from one_round(task, engine, stage, progress, scribe, tests)
            line = entry.line
            scribe.take(entry, ledger.entry(at, line["clients"], len(line["rejected"])))
            due = folder is not None and progress.round % checkpoint_every == 0
            late = engine.beside and entry.measured is not None
            if due or not late or stage.until or stage_over(task, progress):
                scribe.write()
            stop = observer.stop() and not ends(task, progress)
            if stop:
                scribe.write()
            if saver and (due or stop or ends(task, progress)):
                saver.save(progress.round, state_of(engine, progress, scribe.files, chosen))
            if stop:
                if saver:
                    saver.wait()
                raise Interrupted
        if saver:
            saver.wait()
    except BaseException as error:
        scribe.write_despite(error)
        if saver:
            saver.wait_despite(error)
        raise
    finally:
        scribe.close()
    if folder:
        write_models(folder, task, progress)
    return progress


def one_round(
    task: Task, engine: Engine, stage: Stage, progress: Progress, scribe: Scribe, tests: HeldOut
) -> Asking[Entry]:
    """Sample, train, update, begin to measure: what the history will have of the round."""
    began = time.perf_counter()
    algorithm, server, data = stage.algorithm, progress.server, task.federation
    clients = task.takes_part(progress.round)
    order = Order(
        progress.round,
        progress.stage_round,
        task.seed,
        server.shared,
        server.buffers,
        broadcast(algorithm, server),
    )
    before = yield from before_round(task, engine, stage, order, clients, server)
    reply = yield Asked(order, clients)
    line: dict[str, Any] = {"round": progress.round + 1, "stage": progress.stage, "method": algorithm.name}
    if task.precision in ("tf32", "bf16"):
        line["precision"] = task.precision
    line |= {"clients": clients, "rejected": [r._asdict() for r in reply.rejected]}
    if reply.rejected and task.on_divergence == "stop":
        fail(line, reply, scribe)
    if reply.size:
        server = server_update(algorithm, server, reply, len(data.clients), progress.round)
        if not finite({"shared": server.shared, "buffers": server.buffers, "slots": server.slots}):
            fail(line, reply, scribe)
    trained = time.perf_counter() - began - before.seconds
    progress.server, progress.round, progress.stage_round = (
        server,
        progress.round + 1,
        progress.stage_round + 1,
    )
    progress.seen |= set(clients)
    line |= {k: number(v) for k, v in reply.metrics.items()}
    line |= drift(task, engine, stage, progress, reply)
    line |= before.after_round(task, line, server)
    told = measured(task, engine, stage, progress, tests) if evaluates(task, progress.round) else None
    samples = sum(len(data.clients[c]) for c in clients) * stage.local.epochs
    spent = {
        "seconds": time.perf_counter() - began,
        "train_seconds": trained,
        "samples_per_second": samples / trained,
    }
    return Entry(line, told, spent)


def fail(line: dict[str, Any], reply: Reply, scribe: Scribe) -> None:
    """End a diverging run: its last line says so, and the error names round, clients and method."""
    scribe.diverged(line)
    who = ", ".join(str(r.client) for r in reply.rejected) or "the server's update"
    raise Diverged(
        f"{line['method']} diverged in round {line['round']}: client {who} gave numbers that are not finite. "
        "Lower optimizer.lr, set training.clip, or leave such uploads out: training.on_divergence = 'drop'. "
        "The history up to this round is kept."
    )


def ends(task: Task, progress: Progress) -> bool:
    """Whether the round just done was the run's last."""
    last = progress.stage == len(task.stages) - 1
    return progress.round == task.rounds or (last and stage_over(task, progress))


def stage_over(task: Task, progress: Progress) -> bool:
    """Whether the stage is at its end: its rounds are done, or its criterion on its own history is met."""
    stage = task.stages[progress.stage]
    if progress.round == task.end(progress.stage):
        return True
    if stage.until is None:
        return False
    own = progress.history[len(progress.history) - progress.stage_round :]
    return bool(own) and stage.until(own)


def next_stage(task: Task, engine: Engine, progress: Progress) -> None:
    """Hand over to the next stage, if there is one."""
    before = task.stages[progress.stage].algorithm
    progress.stage, progress.stage_round = progress.stage + 1, 0
    if progress.stage < len(task.stages):
        after = task.stages[progress.stage]
        progress.server, kept = hand_over(before, after.algorithm, progress.server, task.model)
        engine.begin(after, {**progress.server.own, **progress.server.shared}, kept)
