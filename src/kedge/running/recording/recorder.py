"""Recorder: evaluates the rounds of one run, counts their costs, and writes history and checkpoints.

On an engine that can overlap work with training (`engine.beside`), a finished round is pending until the next
round trains: the engine calls `finish_pending` as its `on_busy` when its device is busy. All of this happens
in the thread of the run; only checkpoints are written by another thread (saver.py). The recorder never
changes the progress of the run.
"""

import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple, NoReturn, Self

from kedge.config.task import Task
from kedge.core.errors import Diverged
from kedge.core.server import Reply
from kedge.core.tree import finite
from kedge.engines.engine import Assignment, Engine, Order, Rounds, do_nothing
from kedge.measure.evaluation import EvaluationSets
from kedge.measure.settings import Measure
from kedge.running.progress import Interrupted, Observer, Progress, is_last_round, stage_is_over
from kedge.running.recording.costing import Ledger, Place
from kedge.running.recording.history import HistoryWriter, UnfinishedLine
from kedge.running.recording.measuring import evaluates, measured, number
from kedge.running.recording.probing import Probed, before_round, drift
from kedge.running.recording.saver import Saver
from kedge.running.recording.saving import state_of
from kedge.running.start import Start


class FinishedRound(NamedTuple):
    """A round whose server update is done, before it is evaluated and written."""

    progress: Progress  # after the round
    order: Order
    line: dict[str, Any]
    reply: Reply
    probed: Probed
    train_seconds: float


class Recorder:
    """Records the rounds of one run; a context manager that closes its files."""

    def __init__(
        self,
        task: Task,
        engine: Engine,
        start: Start,
        folder: Path | None,
        checkpoint_every: int,
        chosen: dict[str, Any] | None,
        observer: Observer,
    ) -> None:
        self.task, self.engine, self.observer = task, engine, observer
        self.every, self.chosen, self.identity = checkpoint_every, chosen, start.identity
        self.ledger, self.tests = Ledger(task, start.progress.history), EvaluationSets(task.federation)
        writes = folder is not None and checkpoint_every > 0
        self.saver = Saver(folder / "checkpoint", engine.beside) if folder and writes else None
        self.history = HistoryWriter(folder, start.lengths, start.progress.history, observer)
        self.pending: FinishedRound | None = None
        self.error: BaseException | None = None  # of the pending round, raised by `check`

    def __enter__(self) -> Self:
        self.engine.on_busy = self.finish_pending
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Write everything that is pending, also if an error ends the run, and close the files."""
        self.engine.on_busy = do_nothing
        try:
            if error is None:
                self.wait()
            else:
                note_failure(error, "the end of the round before", self.raise_pending)
                note_failure(error, "the line of the round before", self.history.flush)
                note_failure(error, "the last checkpoint", self.wait)
        finally:
            self.history.close()

    def probe(self, progress: Progress, assignment: Assignment) -> Rounds[None]:
        """Start the clock of a round, and take the measurements before it; probes are assignments, too."""
        self.began = time.perf_counter()
        stage = self.task.stages[progress.stage]
        self.probed = yield from before_round(self.task, self.engine, stage, assignment, progress.server)

    def check(self, progress: Progress, assignment: Assignment, reply: Reply) -> None:
        """Finish the round before, unless the engine did so; raise its error, or Diverged for this reply."""
        self.raise_pending()
        if reply.rejected and self.task.on_divergence == "stop":
            self.fail(self.line_of(progress.stage, assignment, reply), reply)

    def record(self, progress: Progress, assignment: Assignment, reply: Reply) -> None:
        """Record a round now or during the next one; raise Interrupted if the observer asks to stop."""
        seconds = time.perf_counter() - self.began - self.probed.seconds
        line = self.line_of(progress.stage, assignment, reply)
        done = FinishedRound(progress, assignment.order, line, reply, self.probed, seconds)
        if self.can_overlap(progress):
            stop = self.observer.stop()
            if not stop:
                self.pending = done
                return
            self.write(done, overlapped=False)
        else:
            self.write(done, overlapped=False)
            stop = self.observer.stop() and not is_last_round(self.task, progress)
        self.save(done, stop)
        if stop:
            self.wait()
            raise Interrupted

    def finish_pending(self) -> None:
        """Write the pending round, if there is one; its error is kept for `check`: this round goes on."""
        done, self.pending = self.pending, None
        if done is None:
            return
        try:
            self.write(done, overlapped=True)
            self.save(done, stop=False)
        except BaseException as error:
            self.error = error

    def raise_pending(self) -> None:
        """Write the pending round, if there is one, and raise its error."""
        self.finish_pending()
        error, self.error = self.error, None
        if error is not None:
            raise error

    def can_overlap(self, progress: Progress) -> bool:
        """Whether a round may be written while the next one trains.

        The first round of a stage may not: the programs that evaluate it are compiled then.
        """
        task, stage = self.task, self.task.stages[progress.stage]
        tunes = bool(task.tune_every and progress.round % task.tune_every == 0)
        return (
            self.engine.beside
            and progress.stage_round > 1
            and stage.until is None
            and not stage_is_over(task, progress)
            and not tunes
            and task.measure == Measure()
        )

    def write(self, done: FinishedRound, overlapped: bool) -> None:
        """Evaluate a round and add its line to the history; `overlapped`: while the next round trains.

        The line is written at once where something depends on it: a checkpoint, a rule, the end of a stage.
        """
        task, progress, server = self.task, done.progress, done.progress.server
        stage, began = task.stages[progress.stage], time.perf_counter()
        if not finite({"shared": server.shared, "buffers": server.buffers, "slots": server.slots}):
            self.fail(done.line, done.reply)
        line = done.line | {k: number(v) for k, v in done.reply.metrics.items()}
        line |= drift(task, self.engine, stage, progress, done.reply)
        line |= done.probed.after_round(task, line, server)
        evaluated = None
        if evaluates(task, progress.round):
            evaluated = measured(task, self.engine, stage, progress, self.tests)
        clients = line["clients"]
        samples = sum(len(task.federation.clients[c]) for c in clients) * stage.local.epochs
        seconds = {
            "seconds": done.probed.seconds
            + done.train_seconds
            + (0 if overlapped else time.perf_counter() - began),
            "train_seconds": done.train_seconds,
            "samples_per_second": samples / done.train_seconds,
        }
        place = Place(progress.stage, done.order.round, done.order.stage_round)
        cost = self.ledger.entry(place, clients, len(line["rejected"]))
        self.history.add(UnfinishedLine(line, evaluated, seconds, cost), overlapped)
        late = self.engine.beside and evaluated is not None
        if self.due(progress) or not late or stage.until or stage_is_over(task, progress):
            self.history.flush(overlapped)

    def save(self, done: FinishedRound, stop: bool) -> None:
        """Save a checkpoint if one is due after this round; `stop`: the run stops here."""
        progress = done.progress
        if stop:
            self.history.flush()
        if self.saver and (self.due(progress) or stop or is_last_round(self.task, progress)):
            files = self.history.files
            state = state_of(self.engine, progress, files, self.chosen, self.identity)
            self.saver.save(progress.round, state)

    def due(self, progress: Progress) -> bool:
        """Whether a checkpoint is saved after this round by its number."""
        return self.saver is not None and progress.round % self.every == 0

    def wait(self) -> None:
        """Wait for the checkpoint that is being written, and raise its error."""
        if self.saver:
            self.saver.wait()

    def line_of(self, stage: int, assignment: Assignment, reply: Reply) -> dict[str, Any]:
        """The first keys of a round's line, known when its reply is there."""
        order, clients = assignment
        name, precision = self.task.stages[stage].algorithm.name, self.task.precision
        return {
            "round": order.round + 1,
            "stage": stage,
            "method": name,
            **({"precision": precision} if precision in ("tf32", "bf16") else {}),
            "clients": clients,
            "rejected": [rejection._asdict() for rejection in reply.rejected],
        }

    def fail(self, line: dict[str, Any], reply: Reply) -> NoReturn:
        """Raise Diverged with round, clients and method, after the last line of the history."""
        self.history.write_diverged(line)
        rejected = ", ".join(str(rejection.client) for rejection in reply.rejected)
        cause = f"client {rejected}" if rejected else "the server's update"
        raise Diverged(
            f"{line['method']} diverged in round {line['round']}: {cause} gave numbers that are not finite. "
            "Lower optimizer.lr, set training.clip, or leave such uploads out: training.on_divergence = "
            "'drop'. The history up to this round is kept."
        )


def note_failure(error: BaseException, what: str, write: Callable[[], None]) -> None:
    """Call `write` while `error` ends the run; add a note to `error` if that fails, too."""
    try:
        write()
    except Exception as other:
        if other is not error:
            error.add_note(f"Besides, {what} could not be written: {other}")
