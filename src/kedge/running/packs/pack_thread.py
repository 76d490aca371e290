"""PackThread: trains the runs of a pack in a second thread, while the main thread receives signals.

Every run has its own folder, checkpoints and history, and the loop of a single run (running/runner.py). The
pack (engines/pack/pack.py) trains the rounds of all runs in one stack.
"""

import queue
import threading
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import torch

from kedge.engines.choice.fallback import without_torch_warnings
from kedge.engines.engine import Rounds
from kedge.engines.out_of_memory import ran_out_of_memory
from kedge.engines.pack.pack import Pack
from kedge.engines.stack.programs import never_fall_back
from kedge.nn.precision import computing_in
from kedge.running.engine_settings import preserve_thread_count, read_engine_settings, write_environment
from kedge.running.preparation import PreparedRun
from kedge.running.progress import Abandoned, Interrupted, Observer, Progress
from kedge.running.progress_bar import PackBar
from kedge.running.requests import Controls, Outcome, without_frames
from kedge.running.runner import rounds

SIGNAL_SECONDS = 0.2  # between checks for a signal: on Windows a waiting queue blocks signals


class End(NamedTuple):
    """The end of one run of the pack."""

    number: int
    error: BaseException | None = None
    trace: str = ""
    out_of_memory: bool = False


class PackThread:
    """Trains the runs of a pack in a daemon thread.

    The main thread iterates `outcomes` once: this starts the thread, and waits for the ends of the runs. The
    thread calls `train`. In it, `Pack.train_runs` resumes the generator of each run (`start_run`) for every
    round, and calls `report_end` when a run ends. Each run calls `must_stop` after each of its rounds. The
    threads share the queue `ends`, the event `leaving` and the progress bar.
    """

    def __init__(
        self, runs: Sequence[PreparedRun], pack: Pack, settings: dict[str, Any], controls: Controls
    ) -> None:
        """`settings` are the engine settings that were chosen for the pack."""
        self.runs, self.pack, self.settings, self.controls = runs, pack, settings, controls
        self.ends: queue.SimpleQueue[End] = queue.SimpleQueue()
        self.reported: set[int] = set()
        self.leaving = threading.Event()  # the main thread no longer waits
        title = f"{runs[0].request.experiment.label} × {len(runs)}"
        self.bar = PackBar(title, [run.task.rounds for run in runs], controls.shown)

    def outcomes(self) -> Iterator[tuple[PreparedRun, Outcome]]:
        """Train all runs, and yield the outcome of each when it ends.

        Raises Interrupted after all runs have stopped, and Abandoned if Ctrl-C interrupts the waiting.
        """
        # A daemon, because it cannot be stopped during a step, and the process may have to end at once.
        thread = threading.Thread(target=self.train, daemon=True)
        interrupted = False
        with (
            computing_in(self.runs[0].task.precision),
            preserve_thread_count(),
            without_torch_warnings(),
            self.bar,
        ):
            torch.set_num_threads(self.settings["threads"])
            try:
                thread.start()
                for _ in self.runs:
                    end = self.wait_for_end()
                    self.bar.count_end(end.number, end.error)
                    if isinstance(end.error, Interrupted):
                        interrupted = True
                    elif end.error is None or isinstance(end.error, Exception):
                        run = self.runs[end.number]
                        yield run, Outcome(run.request, end.error, end.trace, end.out_of_memory)
                    else:
                        raise end.error
            except BaseException as error:
                self.leaving.set()
                if isinstance(error, KeyboardInterrupt):
                    raise Abandoned from None
                raise
            thread.join()
        if interrupted:
            raise Interrupted

    def wait_for_end(self) -> End:
        """Wait for the next end of a run, so that signals are received on every system."""
        while True:
            try:
                return self.ends.get(timeout=SIGNAL_SECONDS)
            except queue.Empty:
                continue

    def train(self) -> None:
        """Train all runs; the target of the thread."""
        torch.set_num_threads(self.settings["threads"])  # OpenMP and dynamo keep these settings per thread
        never_fall_back()
        try:
            self.pack.train_runs(
                [self.start_run(number) for number in range(len(self.runs))], self.report_end
            )
        except BaseException as error:  # an error of the pack itself ends all runs that have not ended
            for number in set(range(len(self.runs))) - self.reported:
                self.report_end(number, error)

    def start_run(self, number: int) -> Rounds[Progress]:
        """The rounds of one run; its engine settings are written when it starts for the first time."""
        (folder, experiment, *_), task = self.runs[number]
        show, say = self.bar.line_callback(number), self.controls.say_beside(self.bar.say)

        def add_line(line: dict[str, Any]) -> None:
            show(line)
            self.controls.line(folder, line)

        observer = Observer(add_line, say, self.must_stop)
        settings = read_engine_settings(folder)
        if settings is None:
            settings = {**self.settings, "packed": len(self.runs)}
            write_environment(folder, task, settings)
        engine, every = self.pack.engines[number], experiment.checkpoint.every
        return (yield from rounds(task, engine, folder, every, settings, observer))

    def must_stop(self) -> bool:
        """Whether the runs must stop after their current round."""
        return self.controls.stop() or self.leaving.is_set()

    def report_end(self, number: int, end: Progress | BaseException) -> None:
        """Pass the end of a run to the main thread."""
        self.reported.add(number)
        if isinstance(end, BaseException):
            out_of_memory = ran_out_of_memory(end)  # before `without_frames` removes the causes
            self.ends.put(End(number, *without_frames(end), out_of_memory))
        else:
            self.ends.put(End(number))
