"""The loop over stages and rounds; read this first.

A run is a pure function of its task: the engine trains the clients of a round, the server updates the model,
and the recorder writes the round to the history. `rounds` is a generator. It yields an assignment for each
round and receives the reply, so one engine can train a single run (`run`), and several runs can train as rows
of one stack (`engines/pack`). History and checkpoints are written while the run trains: a run killed at any
moment resumes exactly.
"""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from kedge.config.task import Task
from kedge.core.server import NOT_JOINED, Reply, broadcast, next_stage_server, server_update
from kedge.engines.engine import Assignment, Engine, Order, Rounds, drive
from kedge.engines.sums import Sums
from kedge.running.draws import draws_of
from kedge.running.progress import Observer, Progress, is_finished, stage_is_over
from kedge.running.recording.final_models import write_models
from kedge.running.recording.recorder import Recorder, Saving
from kedge.running.start import start_run


def run(
    task: Task,
    engine: Engine,
    folder: Path | None = None,
    checkpoint_every: int = 10,
    engine_settings: dict[str, Any] | None = None,
    observer: Observer | None = None,
) -> Progress:
    """Train all rounds on one engine, from the newest checkpoint in `folder` if it has one."""
    return drive(rounds(task, engine, folder, checkpoint_every, engine_settings, observer), engine)


def rounds(
    task: Task,
    engine: Engine,
    folder: Path | None = None,
    checkpoint_every: int = 10,
    engine_settings: dict[str, Any] | None = None,
    observer: Observer | None = None,
) -> Rounds[Progress]:
    """A run as a generator of assignments; checkpoints contain `engine_settings`."""
    observer = observer or Observer()
    saving = Saving(folder, checkpoint_every, engine_settings)
    start = start_run(task, engine, folder, observer.say)
    progress, recorder = start.progress, Recorder(task, engine, start, saving, observer)
    draws = draws_of(task, engine, folder)
    del start  # it would keep the first model in memory
    with recorder:
        while not is_finished(task, progress):
            if stage_is_over(task, progress):
                progress = next_stage(task, engine, progress)
                continue
            assignment = next_assignment(task, progress, draws.participants(progress))
            yield from recorder.probe(progress, assignment)
            reply = (yield assignment) if assignment.clients else Sums().reply()
            recorder.check(progress, assignment, reply)
            reply = draws.release(progress, reply)
            progress = advance(task, progress, assignment, reply)
            recorder.record(progress, assignment, reply)
    if folder:
        write_models(folder, task, progress)
    return progress


def next_assignment(task: Task, progress: Progress, clients: Sequence[int]) -> Assignment:
    """The order that the server sends to the clients of the next round."""
    server = progress.server
    order = Order(
        progress.round,
        progress.stage_round,
        task.seed,
        server.shared,
        server.buffers,
        broadcast(task.stages[progress.stage].algorithm, server),
    )
    return Assignment(order, clients)


def advance(task: Task, progress: Progress, assignment: Assignment, reply: Reply) -> Progress:
    """Progress after the server's update with a reply; the server does not change without uploads."""
    server = progress.server
    absent = {rejection.client for rejection in reply.rejected if rejection.reason == NOT_JOINED}
    if reply.size:
        algorithm, population = task.stages[progress.stage].algorithm, len(task.federation.clients)
        server = server_update(algorithm, server, reply, population, progress.round)
    return replace(
        progress,
        server=server,
        round=progress.round + 1,
        stage_round=progress.stage_round + 1,
        seen=progress.seen | (set(assignment.clients) - absent),
    )


def next_stage(task: Task, engine: Engine, progress: Progress) -> Progress:
    """Start the next stage, if any, on the engine; return the progress at its start."""
    number = progress.stage + 1
    if number == len(task.stages):
        return replace(progress, stage=number, stage_round=0)
    before, after = task.stages[progress.stage].algorithm, task.stages[number]
    server, kept = next_stage_server(before, after.algorithm, progress.server, task.model)
    engine.begin(after, {**server.own, **server.shared}, kept)
    return replace(progress, server=server, stage=number, stage_round=0)
