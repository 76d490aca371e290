"""PackScheduler: divides runs of one group into packs and trains one pack after another."""

from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import ExitStack

import torch

from kedge.core.model import Model
from kedge.data.federation import Federation
from kedge.engines.choice.choose import build
from kedge.engines.choice.compiling import compile_failure
from kedge.engines.choice.fallback import without_torch_warnings
from kedge.engines.pack.pack import Pack
from kedge.engines.stack.planner import Participants
from kedge.engines.stack.stacked import Stacked
from kedge.nn.precision import computing_in
from kedge.running.engine_settings import choice_of, choose_engine, preserve_thread_count
from kedge.running.packs.grouping import even_pack_size, runs_that_fit
from kedge.running.packs.pack_thread import PackThread
from kedge.running.preparation import PreparedRun, prepare_run
from kedge.running.progress import Interrupted
from kedge.running.requests import Controls, Outcome, RunRequest, failure, without_frames
from kedge.running.single_run import train_alone


class PackScheduler:
    """Trains the runs of one group in packs; the caller iterates `outcomes` once.

    The engine is chosen for the first pack and kept for the following packs. Runs that run out of memory in a
    pack resume in smaller packs.
    """

    def __init__(self, requests: Sequence[RunRequest], limit: int, controls: Controls) -> None:
        """`limit` is the largest number of runs in a pack; 0: as many as fit into memory."""
        self.waiting = deque(requests)
        self.limit, self.controls = limit, controls
        self.wanted = requests[0].experiment.engine
        recorded = (request.engine_settings for request in requests)
        self.settings = next(filter(None, recorded), None)  # engine settings; None: not chosen yet

    def outcomes(self) -> Iterator[Outcome]:
        """Train all runs, and yield outcomes as runs end."""
        while self.waiting:
            yield from self.train_next_pack()
            torch.cuda.empty_cache()  # the next pack measures the free memory

    def train_next_pack(self) -> Iterator[Outcome]:
        """Train the next runs in one pack, or one after another if stacking them does not pay."""
        with ExitStack() as locks:
            runs, failed = self.prepare_next(locks)
            yield from failed
            try:
                pack = self.build_pack(runs)
            except Exception as error:  # choosing or building the engine failed, so all these runs fail
                stripped = without_frames(error)
                yield from [Outcome(run.request, *stripped) for run in runs]
                return
            if pack is None:
                yield from (train_alone(run, self.controls) for run in runs)
            else:
                yield from self.train_packed(runs, pack)

    def prepare_next(self, locks: ExitStack) -> tuple[list[PreparedRun], list[Outcome]]:
        """Prepare the runs of the next pack; return them, and outcomes of runs that could not be prepared."""
        prepared: list[PreparedRun] = []
        failed: list[Outcome] = []
        size = 1
        while self.waiting and len(prepared) < size:
            if self.controls.stop():
                raise Interrupted
            request = self.waiting.popleft()
            try:
                prepared.append(prepare_run(request, prepared, locks))
            except Exception as error:  # reported with this run; other runs still train
                failed.append(failure(request, error))
            if len(prepared) == 1:  # the first run shows how much memory a run takes
                size = even_pack_size(len(self.waiting) + 1, self.pack_limit(prepared[0]))
        return prepared, failed

    def pack_limit(self, first: PreparedRun) -> int:
        """The largest number of runs in a pack; `first` shows how much memory a run needs."""
        engine = self.settings["name"] if self.settings else self.wanted.name
        if engine in ("sequential", "ray"):
            return 1
        return self.limit or runs_that_fit(first.task, self.wanted.chunk)

    def build_pack(self, runs: Sequence[PreparedRun]) -> Pack | None:
        """The pack of these runs; None if they train one after another."""
        if len(runs) < 2:
            return None
        if self.settings is None:
            with computing_in(self.wanted.precision), preserve_thread_count(), without_torch_warnings():
                self.settings = choose_engine([run.task for run in runs], self.wanted, self.controls.say)
        if self.settings["name"] == "sequential":
            return None
        choice = choice_of(self.settings)

        def stack(model: Model, data: Federation, participants: Participants | None = None) -> Stacked:
            engine = build(choice, model, data, participants)
            assert isinstance(engine, Stacked), choice.name
            return engine

        engines = [stack(run.task.model, run.task.federation, run.task.participants) for run in runs]
        return Pack(engines, stack, self.wanted.chunk)

    def train_packed(self, runs: Sequence[PreparedRun], pack: Pack) -> Iterator[Outcome]:
        """Train runs in one pack.

        A run that runs out of memory waits for a later, smaller pack. A run whose program cannot be compiled
        trains by itself if the engine is "auto", which then chooses an engine that compiles nothing.
        """
        assert self.settings is not None
        retried, uncompiled = [], []
        for run, outcome in PackThread(runs, pack, self.settings, self.controls).outcomes():
            if outcome.out_of_memory:
                retried.append(run.request._replace(start="resume"))
            elif self.wanted.name == "auto" and outcome.error and compile_failure(outcome.error):
                uncompiled.append(run)
            else:
                yield outcome
        yield from (train_alone(run, self.controls) for run in uncompiled)
        if retried:
            self.limit = max(1, len(runs) // 2)
            self.waiting.extend(retried)
            self.controls.say(
                f"out of memory: {len(retried)} runs resume from their last checkpoints, in packs of at most "
                f"{self.limit}"
            )
