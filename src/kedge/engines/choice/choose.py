"""Choose the fastest engine for a run, by a trial of a few steps (trial.py)."""

import os
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import torch

from kedge.core.algorithm import Stage
from kedge.core.errors import RequestError
from kedge.core.model import Model
from kedge.data.federation import Federation
from kedge.engines.choice.capacity import rows_at_once
from kedge.engines.choice.trial import (
    Trial,
    Work,
    captured_seconds,
    program_count,
    run_trial,
    stacked_seconds,
)
from kedge.engines.choice.unstackable import NotCompiled, unstackable
from kedge.engines.cuda.captured import captured_stack
from kedge.engines.cuda.streams import StreamTrial, best_streams, cache_key
from kedge.engines.engine import Engine
from kedge.engines.out_of_memory import ran_out_of_memory
from kedge.engines.sequential import Sequential
from kedge.engines.stack.direct import Direct
from kedge.engines.stack.planner import Participants
from kedge.engines.stack.programs import bucket, cpu_keeps_rounding
from kedge.engines.stack.stacked import Stacked
from kedge.nn.naming import error_text

COMPILE_SECONDS = 20.0  # usual time to compile a program
UNROLL_SECONDS = 2.0  # added for each time step of a recurrent layer
COMPILE_GAIN = 0.5  # the share of a stacked round that compiling saves, at least
GRAPHS_GAIN = 5.0  # approximate speed of captured graphs relative to an uncompiled stack
MIXES = (
    "The model computes a sample's output from other samples of its batch, and a stack pads the last batches "
    "of clients: the padding would change the result."
)


@dataclass(frozen=True)
class Choice:
    """The chosen engine, and why."""

    name: str
    compiled: bool
    chunk: int
    reason: str
    streams: int = 1  # CUDA streams on which the rows train


class EngineOptions(NamedTuple):
    """The user's settings of an engine; "auto" and 0 leave a setting open."""

    name: str = "auto"
    compile: str = "auto"
    chunk: int = 0
    streams: int = 0
    precision: str = "fp32"


def build(
    choice: Choice, model: Model, federation: Federation, participants: Participants | None = None
) -> Engine:
    """The engine of a choice; `participants` gives the clients of a later round."""
    if choice.name == "captured":
        return captured_stack(model, federation, choice.chunk, participants, choice.streams)
    if choice.name == "sequential":
        return Sequential(model, federation)
    return Stacked(model, federation, choice.chunk, Direct(choice.compiled, model.half))


def choose(
    work: Work, wanted: EngineOptions | None = None, say: Callable[[str], None] = lambda message: None
) -> Choice:
    """Choose the settings that the user left open; `say` receives messages for the user."""
    wanted = possible_settings(work, wanted or EngineOptions(), say)
    if wanted.name == "sequential":
        return Choice("sequential", False, 0, "asked for")
    if work.model.mixes_samples and pads_batches(work.federation, work.stage):
        if wanted.name != "auto":
            raise RequestError(
                f"engine.name = {wanted.name!r}: {MIXES} engine.name = 'sequential' can run it."
            )
        say(f"engine.name: sequential. {MIXES}")
        return Choice("sequential", False, 0, MIXES)
    chunk = wanted.chunk or min(work.per_round, rows_at_once(work.model, work.federation))
    programs = program_count(work)
    seconds = (COMPILE_SECONDS + UNROLL_SECONDS * work.model.unrolled) * programs
    chooser = Chooser(work, wanted._replace(chunk=chunk), programs, seconds, say)
    return chooser.without_trial() or chooser.by_trial()


def possible_settings(work: Work, wanted: EngineOptions, say: Callable[[str], None]) -> EngineOptions:
    """The user's settings, with the changes that this machine requires.

    Raises RequestError for a setting that this machine cannot run.
    """
    device = work.federation.pool.x.device
    if wanted.compile == "on" and not has_compiler():
        raise RequestError(
            "engine.compile = 'on': no C++ compiler is found here (g++, clang++ or $CXX). "
            "Install one, or use compile = 'off'."
        )
    half_on_cpu = work.model.half and device.type == "cpu"
    if wanted.compile != "off" and half_on_cpu and not cpu_keeps_rounding():
        if wanted.compile == "on":
            raise RequestError(
                "engine.compile = 'on' with engine.precision = 'bf16': torch "
                f"{torch.__version__} compiles wrong bf16 gradients on a CPU. Use torch 2.13 or newer, "
                "engine.compile = 'off', or engine.precision = 'fp32'."
            )
        wanted = wanted._replace(compile="off")
    if wanted.name == "captured" and device.type != "cuda":
        say("engine.name: 'captured' needs a CUDA device, and this run is on the CPU: choosing another")
        wanted = wanted._replace(name="auto")
    return wanted


@dataclass(frozen=True)
class Chooser:
    """Chooses between a stack, captured graphs and the sequential engine."""

    work: Work
    wanted: EngineOptions  # with its chunk
    programs: int  # number of programs of a round
    compile_seconds: float  # to compile all of them
    say: Callable[[str], None]

    def without_trial(self) -> Choice | None:
        """The choice if the settings determine it, or None."""
        name, compile, chunk = self.wanted[:3]
        if compile == "on" or name == "captured":
            self.say(
                f"compiling {self.programs} program(s): the first rounds take up to "
                f"{self.compile_seconds:.0f} s longer"
            )
        if name == "captured":
            return self.captured("asked for")
        if name == "stacked" and compile != "auto":
            return Choice("stacked", compile == "on", chunk, "asked for")
        if self.may_capture() and compile == "on":
            return self.captured("a GPU, to be compiled for")
        if self.work.per_round == 1 and name == "auto" and not self.may_capture():
            return Choice("sequential", False, 0, "one client a round")
        return None

    def by_trial(self) -> Choice:
        """The engine that is faster in a trial, compiled if the remaining rounds repay that."""
        auto = self.wanted.name == "auto"
        try:
            trial = run_trial(self.work, self.wanted.chunk, auto)
        except RuntimeError as error:
            if not auto or ran_out_of_memory(error):
                raise
            reason = str(unstackable(error) or f"stacked fails: {error_text(error)}")
            self.say(f"engine.name: sequential. {reason}")
            return Choice("sequential", False, 0, reason)
        if trial.fallback_operators:
            self.say(trial.fallback_message())
        compile = self.repays_compiling(trial)
        if compile and self.may_capture():
            try:
                return self.captured("a GPU, and rounds enough to repay compiling")
            except NotCompiled as error:
                self.say(f"choosing an engine that compiles nothing: {error}")
                compile = False
        if trial.sequential <= trial.stacked:
            reason = f"{trial.stacked / trial.sequential:.1f} times as fast as stacked in a short trial"
            return Choice("sequential", False, 0, "; ".join([reason, *trial.reasons()]))
        reason = f"{trial.sequential / trial.stacked:.1f} times as fast as sequential in a short trial"
        compiled = self.wanted.compile == "on" or compile
        return Choice("stacked", compiled, self.wanted.chunk, reason if auto else "asked for")

    def may_capture(self) -> bool:
        """Whether captured graphs may be chosen: on a GPU, unless the settings exclude them."""
        device = self.work.federation.pool.x.device.type
        return device == "cuda" and self.wanted.name == "auto" and self.wanted.compile != "off"

    def repays_compiling(self, trial: Trial) -> bool:
        """Whether compiling saves more time than it takes."""
        seconds = self.work.rounds * min(trial.sequential, trial.stacked)
        # A program would contain each operator in `trial.fallback_operators` once per client.
        if self.wanted.compile != "auto" or trial.fallback_operators or not has_compiler():
            return False
        speedup = GRAPHS_GAIN if self.may_capture() else 1.0
        if COMPILE_GAIN * seconds <= 2 * self.compile_seconds or trial.stacked / speedup >= trial.sequential:
            return False
        self.say(
            f"compiling {self.programs} program(s), about {self.compile_seconds:.0f} s, "
            f"to save part of about {seconds:.0f} s of training"
        )
        return True

    def captured(self, reason: str) -> Choice:
        """Captured graphs, on the number of streams that the user asked for, or else on the best."""
        work, chunk, streams = self.work, self.wanted.chunk, self.wanted.streams
        rows = bucket(chunk)
        if not streams and rows > 1:
            key = cache_key(work.model, work.federation, work.stage, rows, self.wanted.precision)
            streams = best_streams(key, rows, self.stream_trial(), self.say)
        return Choice("captured", True, chunk, reason, streams or 1)

    def stream_trial(self) -> StreamTrial:
        """The trial of several numbers of streams for this work."""
        work, chunk = self.work, self.wanted.chunk
        return StreamTrial(
            seconds=partial(captured_seconds, work, chunk),
            remaining=lambda: work.rounds * stacked_seconds(work, chunk) / GRAPHS_GAIN,
            cost=self.compile_seconds,
        )


def pads_batches(federation: Federation, stage: Stage) -> bool:
    """Whether a stack pads some batch: not all batches of all clients have the same size."""
    batch, sizes = stage.local.batch, {len(samples) for samples in federation.clients}
    lengths = {min(size, batch) for size in sizes}
    if not stage.local.drop_last:
        lengths |= {size % batch for size in sizes if size > batch and size % batch}
    return len(lengths) > 1


def has_compiler() -> bool:
    """Whether a C++ compiler is installed, which torch.compile needs."""
    return any(shutil.which(name) for name in (os.environ.get("CXX", "g++"), "clang++"))
