"""Recorder: evaluates the rounds of one run, counts their costs, and writes history and checkpoints.

On an engine that overlaps work with training (engines/overlap.py), a finished round is pending until the next
round trains: the engine calls `finish_pending` as its `on_busy` when its device is busy. All of this happens
in the thread of the run. Only checkpoints are written by another thread (checkpoint_writer.py). The recorder
never changes the progress of the run.
"""

import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple, NoReturn, Self

from kedge.config.task import Task
from kedge.core.errors import Diverged
from kedge.core.server import Reply
from kedge.core.tree import finite
from kedge.engines.engine import Assignment, Engine, Rounds
from kedge.engines.overlap import do_nothing, overlap_of
from kedge.measure.cost.cost import Cost
from kedge.measure.evaluation import EvaluationSets
from kedge.measure.settings import Measure
from kedge.running.progress import Interrupted, Observer, Progress, is_last_round, stage_is_over
from kedge.running.recording.checkpoint_writer import CheckpointWriter
from kedge.running.recording.diagnostics import BeforeRound, drift_values, measure_before_round
from kedge.running.recording.evaluation import evaluation_due, finite_or_none, start_evaluation
from kedge.running.recording.history import HistoryWriter, UnfinishedLine, late_line
from kedge.running.recording.privacy_values import accountant_of, privacy_values
from kedge.running.recording.round_costs import CostCounter, RoundPosition, joined_clients
from kedge.running.recording.run_state import checkpoint_state
from kedge.running.recording.site_metrics import requested_again, with_site_metrics
from kedge.running.start import Start


class FinishedRound(NamedTuple):
    """A round whose server update is done, before it is evaluated and written."""

    progress: Progress  # after the round
    position: RoundPosition  # not the order, so that the model that was sent is freed in the next round
    line: dict[str, Any]
    reply: Reply
    before: BeforeRound
    train_seconds: float


class Saving(NamedTuple):
    """The folder of a run (None: nothing is written), and the settings of its checkpoints."""

    folder: Path | None
    checkpoint_every: int  # rounds; 0: no checkpoints
    engine_settings: dict[str, Any] | None


class Recorder:
    """Records the rounds of one run; a context manager that closes its files."""

    def __init__(
        self,
        task: Task,
        engine: Engine,
        start: Start,
        saving: Saving,
        observer: Observer,
    ) -> None:
        self.task, self.engine, self.observer = task, engine, observer
        self.saving, self.identity = saving, start.identity
        self.overlap = overlap_of(engine)
        late = [start.late["values"]] if start.late else []
        history = [*start.progress.history, *late]
        # None: the cost depends on the round's participants, which a private federation keeps secret.
        self.costs = None if task.noise_source == "system" else CostCounter(task, history)
        self.accountant = accountant_of(task)
        self.tests = EvaluationSets(task.federation)
        folder = saving.folder
        self.writer: CheckpointWriter | None = None
        if folder and saving.checkpoint_every > 0:
            self.writer = CheckpointWriter(folder / "checkpoint", self.overlap.overlaps)
        self.history = HistoryWriter(folder, start.lengths, start.progress.history, observer)
        if start.late:
            self.history.add(late_line(start.late, partial(requested_again, task, engine)))
        self.pending: FinishedRound | None = None
        self.error: BaseException | None = None  # of the pending round, raised by `check`

    def __enter__(self) -> Self:
        self.overlap.on_busy = self.finish_pending
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Write everything that is pending, also if an error ends the run, and close the files."""
        self.overlap.on_busy = do_nothing
        try:
            if error is None:
                self.wait()
            else:
                note_failure(error, "the end of the previous round", self.raise_pending)
                note_failure(error, "the line of the previous round", self.history.flush)
                note_failure(error, "the last checkpoint", self.wait)
        finally:
            self.history.close()

    def probe(self, progress: Progress, assignment: Assignment) -> Rounds[None]:
        """Start the clock of a round, and take the measurements before it; yields assignments of probes."""
        self.began = time.perf_counter()
        stage = self.task.stages[progress.stage]
        self.before = yield from measure_before_round(
            self.task, self.engine, stage, assignment, progress.server
        )

    def check(self, progress: Progress, assignment: Assignment, reply: Reply) -> None:
        """Finish the previous round, if the engine has not; raise its error, or Diverged for this reply."""
        self.raise_pending()
        if reply.rejected and self.task.on_divergence == "stop":
            self.fail(self.line_of(progress.stage, assignment, reply), reply)

    def record(self, progress: Progress, assignment: Assignment, reply: Reply) -> None:
        """Record a round now or during the next one; raise Interrupted if the observer stops the run."""
        seconds = time.perf_counter() - self.began - self.before.seconds
        line = self.line_of(progress.stage, assignment, reply)
        position = RoundPosition(progress.stage, assignment.order.round, assignment.order.stage_round)
        done = FinishedRound(progress, position, line, reply, self.before, seconds)
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
        """Write the pending round, if any; `check` raises its error when the current round is done."""
        done, self.pending = self.pending, None
        if done is None:
            return
        try:
            self.write(done, overlapped=True)
            self.save(done, stop=False)
        except BaseException as error:
            self.error = error

    def raise_pending(self) -> None:
        """Write the pending round, if any, and raise its error."""
        self.finish_pending()
        error, self.error = self.error, None
        if error is not None:
            raise error

    def can_overlap(self, progress: Progress) -> bool:
        """Whether a round may be written while the next one trains.

        The first round of a stage may not, because the programs that evaluate it are compiled then.
        """
        task, stage = self.task, self.task.stages[progress.stage]
        tunes = bool(task.tune_every and progress.round % task.tune_every == 0)
        return (
            self.overlap.overlaps
            and progress.stage_round > 1
            and stage.until is None
            and not stage_is_over(task, progress)
            and not tunes
            and task.measure == Measure()
        )

    def write(self, done: FinishedRound, overlapped: bool) -> None:
        """Evaluate a round and add its line to the history; `overlapped`: while the next round trains.

        The line is written at once if a checkpoint, a rule or the end of a stage depends on it.
        """
        task, progress, server = self.task, done.progress, done.progress.server
        stage, began = task.stages[progress.stage], time.perf_counter()
        if self.history.late:  # its metrics have arrived with the replies of this round
            self.history.flush(overlapped)
        if not finite({"shared": server.shared, "buffers": server.buffers, "slots": server.slots}):
            self.fail(done.line, done.reply)
        line = done.line | {k: finite_or_none(v) for k, v in done.reply.metrics.items()}
        line |= drift_values(task, self.engine, stage, progress, done.reply)
        line |= done.before.after_round(task, line, server)
        line |= privacy_values(self.accountant, progress.round, task.noise_source)
        evaluated = late = None
        if evaluation_due(task, progress.round):
            evaluated = start_evaluation(task, self.engine, stage, progress, self.tests)
            evaluated, late = with_site_metrics(task, self.engine, progress, evaluated)
        work = self.work_of(done, 0 if overlapped else time.perf_counter() - began)
        self.history.add(UnfinishedLine(line, evaluated, *work, late), overlapped)
        waits = self.overlap.overlaps and evaluated is not None
        if not late and (self.due(progress) or not waits or stage.until or stage_is_over(task, progress)):
            self.history.flush(overlapped)

    def work_of(self, done: FinishedRound, seconds: float) -> tuple[dict[str, float], Cost | None]:
        """The time and the cost of a round whose evaluation took `seconds`; nothing if they are secret."""
        if self.costs is None:
            return {}, None
        task, line = self.task, done.line
        clients, epochs = joined_clients(line), task.stages[line["stage"]].local.epochs
        samples = sum(len(task.federation.clients[c]) for c in clients) * epochs
        times = {
            "seconds": done.before.seconds + done.train_seconds + seconds,
            "train_seconds": done.train_seconds,
            "samples_per_second": samples / done.train_seconds,
        }
        rejected = len(line["rejected"]) - (len(line["clients"]) - len(clients))
        return times, self.costs.count_round(done.position, clients, rejected)

    def save(self, done: FinishedRound, stop: bool) -> None:
        """Save a checkpoint if one is due after this round; `stop`: the run stops here."""
        progress = done.progress
        if stop and not self.history.late:
            self.history.flush()
        if self.writer and (self.due(progress) or stop or is_last_round(self.task, progress)):
            settings = self.saving.engine_settings
            state = checkpoint_state(self.engine, progress, self.history, settings, self.identity)
            self.writer.save(progress.round, state)

    def due(self, progress: Progress) -> bool:
        """Whether the number of this round makes a checkpoint due."""
        return self.writer is not None and progress.round % self.saving.checkpoint_every == 0

    def wait(self) -> None:
        """Wait for the checkpoint that is being written, and raise its error."""
        if self.writer:
            self.writer.wait()

    def line_of(self, stage: int, assignment: Assignment, reply: Reply) -> dict[str, Any]:
        """The first values of a round's line, which do not depend on the server's update."""
        order, clients = assignment
        name, precision = self.task.stages[stage].algorithm.name, self.task.precision
        return {
            "round": order.round + 1,
            "stage": stage,
            "method": name,
            **({"precision": precision} if precision in ("tf32", "bf16") else {}),
            **({} if self.task.noise_source == "system" else participation_of(clients, reply)),
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


def participation_of(clients: Sequence[int], reply: Reply) -> dict[str, Any]:
    """The participants of a round, and the uploads that were left out; secret in a private federation."""
    return {"clients": clients, "rejected": [rejection._asdict() for rejection in reply.rejected]}


def note_failure(error: BaseException, name: str, write: Callable[[], None]) -> None:
    """Call `write` while `error` ends the run; if it fails, too, add a note with `name` to `error`."""
    try:
        write()
    except Exception as other:
        if other is not error:
            error.add_note(f"Besides, {name} could not be written: {other}")
