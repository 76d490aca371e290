"""The loop over stages and rounds; read this first.

A run is a pure function of its task: the engine trains, the server updates, the history gets one line a
round. Where a folder is given, everything is on disk as it happens, and a run killed at any moment goes
on exactly.

An engine that evaluates beside what it trains is given the next round as soon as the server is updated: the
last one is measured and written while the next trains. Its numbers are asked for a round later still, unless
somebody needs them before.
"""

import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from kedge.config.task import Task
from kedge.core.algorithm import Stage
from kedge.core.errors import Diverged, RequestError
from kedge.core.server import Reply, broadcast, hand_over, opened, server_update
from kedge.core.tree import cast, finite
from kedge.engines.engine import NO_CHORES, Asked, Asking, Chores, Engine, Order, answered
from kedge.measure.evaluate import HeldOut
from kedge.measure.settings import Measure
from kedge.running.folders.identity import digest_in
from kedge.running.progress import Interrupted, Observer, Progress
from kedge.running.recording.costing import Ledger, Place
from kedge.running.recording.history import Entry, Scribe
from kedge.running.recording.measuring import evaluates, measured, number
from kedge.running.recording.probing import before_round, drift
from kedge.running.recording.saver import Saver
from kedge.running.recording.saving import load_newest, restored, state_of, write_models

Rest = Callable[[bool], Entry]  # whether the next round trains -> what there is of the last


def run(
    task: Task,
    engine: Engine,
    folder: Path | None = None,
    checkpoint_every: int = 10,
    chosen: dict[str, Any] | None = None,
    observer: Observer | None = None,
) -> Progress:
    """Run all stages, from the newest checkpoint in the folder if there is one."""
    return answered(asking(task, engine, folder, checkpoint_every, chosen, observer), engine)


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
    identity = digest_in(folder)
    saved = load_newest(folder, identity, observer.say) if folder else None
    if saved:
        progress = restored(task, engine, saved, folder)
        check_rounds(task, progress, folder)
    ledger, tests = Ledger(task, progress.history), HeldOut(task.federation)
    saver = Saver(folder / "checkpoint", engine.beside) if folder and checkpoint_every else None
    scribe = Scribe(folder, saved.facts["lengths"] if saved else {}, progress.history, observer)
    chores = NO_CHORES  # what is left to do of the last round

    def finished(rest: Rest, stage: Stage, at: Place, stop: bool | None) -> bool:
        """Measure a round and write what there is of it; whether to stop after it.

        That is asked here, unless it was before: if not, the next round trains already.
        """
        training = stop is False
        entry = rest(training)
        cost = ledger.entry(at, entry.line["clients"], len(entry.line["rejected"]))
        scribe.take(entry, cost, training)
        due = saver is not None and progress.round % checkpoint_every == 0
        late = engine.beside and entry.measured is not None
        if due or not late or stage.until or stage_over(task, progress):
            scribe.write(training)
        if stop is None:
            stop = observer.stop() and not ends(task, progress)
        if stop:
            scribe.write()
        if saver and (due or stop or ends(task, progress)):
            saver.save(progress.round, state_of(engine, progress, scribe.files, chosen, identity))
        return stop

    try:
        while progress.stage < len(task.stages):
            stage = task.stages[progress.stage]
            if stage.until and progress.round >= task.rounds:
                break  # its rule was not met in time: the stage that waits for it never begins
            if stage_over(task, progress):
                next_stage(task, engine, progress)
                continue
            at = Place(progress.stage, progress.round, progress.stage_round)
            rest = yield from one_round(task, engine, stage, progress, scribe, tests, chores)
            stop = None
            if may_wait(task, engine, stage, progress):
                stop = observer.stop()
                if not stop:
                    chores = Chores(partial(finished, rest, stage, at, stop))
                    continue
            chores = NO_CHORES
            if finished(rest, stage, at, stop):
                if saver:
                    saver.wait()
                raise Interrupted
        if saver:
            saver.wait()
    except BaseException as error:
        despite(error, "the end of the round before", chores.done)
        despite(error, "the line of the round before", scribe.write)
        if saver:
            despite(error, "the last checkpoint", saver.wait)
        raise
    finally:
        scribe.close()
    if folder:
        write_models(folder, task, progress)
    return progress


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


def despite(error: BaseException, what: str, write: Callable[[], None]) -> None:
    """Write this while an error ends the run, which is what is told in any case."""
    try:
        write()
    except Exception as other:
        if other is not error:
            error.add_note(f"Besides, {what} could not be written: {other}")


def may_wait(task: Task, engine: Engine, stage: Stage, progress: Progress) -> bool:
    """Whether the next round may begin before the last is measured and written.

    The first one may not: what measures is made then.
    """
    tunes = bool(task.tune_every and progress.round % task.tune_every == 0)
    return (
        engine.beside
        and progress.stage_round > 1
        and stage.until is None
        and not stage_over(task, progress)
        and not tunes
        and task.measure == Measure()
    )


def one_round(
    task: Task,
    engine: Engine,
    stage: Stage,
    progress: Progress,
    scribe: Scribe,
    tests: HeldOut,
    chores: Chores,
) -> Asking[Rest]:
    """Sample, train, update; what begins to measure, and gives what the history will have of the round."""
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
    reply = yield Asked(order, clients, chores)
    chores.done()
    line: dict[str, Any] = {"round": progress.round + 1, "stage": progress.stage, "method": algorithm.name}
    if task.precision in ("tf32", "bf16"):
        line["precision"] = task.precision
    line |= {"clients": clients, "rejected": [r._asdict() for r in reply.rejected]}
    if reply.rejected and task.on_divergence == "stop":
        fail(line, reply, scribe)
    if reply.size:
        server = server_update(algorithm, server, reply, len(data.clients), progress.round)
    trained = time.perf_counter() - began - before.seconds
    progress.server, progress.round, progress.stage_round = (
        server,
        progress.round + 1,
        progress.stage_round + 1,
    )
    progress.seen |= set(clients)

    def rest(training: bool) -> Entry:
        since = time.perf_counter()
        if not finite({"shared": server.shared, "buffers": server.buffers, "slots": server.slots}):
            fail(line, reply, scribe)
        own = line | {k: number(v) for k, v in reply.metrics.items()}
        own |= drift(task, engine, stage, progress, reply)
        own |= before.after_round(task, own, server)
        told = measured(task, engine, stage, progress, tests) if evaluates(task, progress.round) else None
        samples = sum(len(data.clients[c]) for c in clients) * stage.local.epochs
        spent = {
            "seconds": before.seconds + trained + (0 if training else time.perf_counter() - since),
            "train_seconds": trained,
            "samples_per_second": samples / trained,
        }
        return Entry(own, told, spent)

    return rest


def fail(line: dict[str, Any], reply: Reply, scribe: Scribe) -> None:
    """End a diverging run: its last line says so, and the error names round, clients and method."""
    scribe.diverged(line)
    rejected = ", ".join(str(r.client) for r in reply.rejected)
    who = f"client {rejected}" if rejected else "the server's update"
    raise Diverged(
        f"{line['method']} diverged in round {line['round']}: {who} gave numbers that are not finite. "
        "Lower optimizer.lr, set training.clip, or leave such uploads out: training.on_divergence = 'drop'. "
        "The history up to this round is kept."
    )


def ends(task: Task, progress: Progress) -> bool:
    """Whether the round just done was the run's last."""
    last = progress.stage == len(task.stages) - 1
    return progress.round >= task.rounds or (last and stage_over(task, progress))


def stage_over(task: Task, progress: Progress) -> bool:
    """Whether the stage is at its end: its rounds are done, or its criterion on its own history is met."""
    stage = task.stages[progress.stage]
    if progress.round >= task.end(progress.stage):
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
