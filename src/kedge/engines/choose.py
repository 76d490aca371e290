"""Which engine is faster for the model at hand: measured on a few steps of the real work, recorded."""

import os
import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import torch
from torch.func import vmap

from kedge.core.algorithm import Stage
from kedge.core.errors import RequestError
from kedge.core.model import Batch, Model
from kedge.core.schedules import Clock
from kedge.core.server import broadcast, initial_server
from kedge.core.tree import tree_to
from kedge.data.batches import step_counts
from kedge.data.federation import Federation
from kedge.engines.capacity import rows_at_once
from kedge.engines.cuda.captured import captured_stack
from kedge.engines.cuda.streams import best
from kedge.engines.direct import Direct
from kedge.engines.engine import Engine, Order
from kedge.engines.fallback import collect_fallback_operators
from kedge.engines.lockstep import client_steps, steps_of_round
from kedge.engines.out_of_memory import ran_out_of_memory
from kedge.engines.planner import Participants
from kedge.engines.programs import bucket, cpu_keeps_rounding
from kedge.engines.sequential import Sequential
from kedge.engines.stacked import Stacked
from kedge.engines.unstackable import NotCompiled, unstackable
from kedge.nn.naming import error_text

COMPILE_SECONDS = 20.0  # a program's usual cost
UNROLL_SECONDS = 2.0  # added to it for each time step of a recurrent layer
COMPILE_GAIN = 0.5  # the share of a stacked round that compiling saves, at least
GRAPHS_GAIN = 5.0  # how much faster captured graphs are than the plain stack, about
PROBE_STEPS = 2
STREAM_STEPS = 16  # long enough for a graph of several steps
IDLE = 2.0  # rows' steps by clients' steps; a larger ratio is reported
MIXES = (
    "The model computes a sample's output from other samples of its batch, and a stack pads the last batches "
    "of clients: the padding would change the result."
)


@dataclass(frozen=True)
class Choice:
    """What runs, and why."""

    name: str
    compiled: bool
    chunk: int
    reason: str
    streams: int = 1  # of a GPU, on which the rows train


def build(
    choice: Choice, model: Model, federation: Federation, participants: Participants | None = None
) -> Engine:
    """The engine of a choice; `participants` gives the clients of a later round."""
    if choice.name == "captured":
        return captured_stack(model, federation, choice.chunk, participants, choice.streams)
    if choice.name == "sequential":
        return Sequential(model, federation)
    return Stacked(model, federation, choice.chunk, Direct(choice.compiled, model.half))


def pads_batches(federation: Federation, stage: Stage) -> bool:
    """Whether a stack pads some batch: not all batches of all clients have the same size."""
    batch, sizes = stage.local.batch, {len(own) for own in federation.clients}
    lengths = {min(size, batch) for size in sizes}
    if not stage.local.drop_last:
        lengths |= {size % batch for size in sizes if size > batch and size % batch}
    return len(lengths) > 1


def choose(
    model: Model,
    federation: Federation,
    stage: Stage,
    per_round: int,
    rounds: int,
    name: str = "auto",
    compile: str = "auto",
    chunk: int = 0,
    streams: int = 0,
    precision: str = "fp32",
    say: Callable[[str], None] = lambda message: None,
) -> Choice:
    """Settle what the user left open, by timing a few steps of this model on this machine."""
    if compile == "on" and not has_compiler():
        raise RequestError(
            "engine.compile = 'on': no C++ compiler is found here (g++, clang++ or $CXX). "
            "Install one, or use compile = 'off'."
        )
    device = federation.pool.x.device
    if compile != "off" and model.half and device.type == "cpu" and not cpu_keeps_rounding():
        if compile == "on":
            raise RequestError(
                "engine.compile = 'on' with engine.precision = 'bf16': torch "
                f"{torch.__version__} compiles wrong bf16 gradients on a CPU. Use torch 2.13 or newer, "
                "engine.compile = 'off', or engine.precision = 'fp32'."
            )
        compile = "off"
    chunk = chunk or min(per_round, rows_at_once(model, federation))
    if name == "captured" and device.type != "cuda":
        say("engine.name: 'captured' needs a CUDA device, and this run is on the CPU: choosing another")
        name = "auto"
    if name == "sequential":
        return Choice("sequential", False, 0, "asked for")
    if model.mixes_samples and pads_batches(federation, stage):
        if name != "auto":
            raise RequestError(f"engine.name = {name!r}: {MIXES} engine.name = 'sequential' can run it.")
        say(f"engine.name: sequential. {MIXES}")
        return Choice("sequential", False, 0, MIXES)
    programs = program_count(model, federation, stage)
    cost = (COMPILE_SECONDS + UNROLL_SECONDS * model.unrolled) * programs
    if compile == "on" or name == "captured":
        say(f"compiling {programs} program(s): the first rounds take up to {cost:.0f} s longer")
    on_gpu = partial(
        replayed, model, federation, stage, per_round, rounds, chunk, streams, precision, cost, say
    )
    if name == "captured":
        return on_gpu("asked for")
    if name == "stacked" and compile != "auto":
        return Choice("stacked", compile == "on", chunk, "asked for")
    gpu = device.type == "cuda" and name == "auto" and compile != "off"
    if gpu and compile == "on":
        return on_gpu("a GPU, to be compiled for")
    if per_round == 1 and name == "auto" and not gpu:
        return Choice("sequential", False, 0, "one client a round")
    try:
        found = run_trial(model, federation, stage, per_round, chunk, name == "auto")
    except RuntimeError as error:
        if name != "auto" or ran_out_of_memory(error):
            raise
        told = str(unstackable(error) or f"stacked fails: {error_text(error)}")
        say(f"engine.name: sequential. {told}")
        return Choice("sequential", False, 0, told)
    if found.unknown:
        say(found.one_by_one())
    plain, stacked = found.plain, found.stacked
    to_come = rounds * min(plain, stacked)
    # A program would contain each operator in `found.unknown` once per client.
    repaid = compile == "auto" and not found.unknown and COMPILE_GAIN * to_come > 2 * cost and has_compiler()
    gpu = gpu and stacked / GRAPHS_GAIN < plain
    if repaid and (gpu or stacked < plain):
        say(
            f"compiling {programs} program(s), about {cost:.0f} s, "
            f"to save part of about {to_come:.0f} s of training"
        )
    if repaid and gpu:
        try:
            return on_gpu("a GPU, and rounds enough to repay compiling")
        except NotCompiled as error:
            say(f"choosing an engine that compiles nothing: {error}")
            repaid = False
    if plain <= stacked:
        reason = f"{stacked / plain:.1f} times as fast as stacked in a short trial"
        return Choice("sequential", False, 0, "; ".join([reason, *found.reasons()]))
    reason = f"{plain / stacked:.1f} times as fast as sequential in a short trial"
    return Choice("stacked", compile == "on" or repaid, chunk, "asked for" if name == "stacked" else reason)


@dataclass(frozen=True)
class Trial:
    """The estimated cost of a round, measured on a few of its steps."""

    plain: float  # seconds of the sequential engine; infinite if not measured
    stacked: float  # seconds of a stack; each chunk waits for its longest client
    idle: float  # steps of the stack's rows divided by steps of its clients
    unknown: tuple[str, ...]  # operators that vmap computes client by client

    def one_by_one(self) -> str:
        """A sentence that names the operators which a stack computes client by client."""
        return f"torch's vmap computes {', '.join(self.unknown)} client by client"

    def reasons(self) -> list[str]:
        """The reasons why a stack is slow."""
        found = [self.one_by_one()] if self.unknown else []
        if self.idle > IDLE:
            found.append(
                f"a stack waits for its longest client: it takes {self.idle:.1f} times the clients' steps"
            )
        return found


def run_trial(
    model: Model, federation: Federation, stage: Stage, per_round: int, chunk: int, alone: bool
) -> Trial:
    """Time a few steps on the stacked engine, and if `alone` on the sequential engine as well."""
    probe, work = shrunk(federation, stage, chunk)
    plain = timed(Sequential(model, probe), model, probe, work) if alone else float("inf")
    with collect_fallback_operators() as unknown:
        stacked = timed(Stacked(model, probe, chunk), model, probe, work)
        if alone:
            evaluate_stacked(model, probe)
    tried, steps = client_steps(probe, work), steps_of_round(federation, stage, per_round, chunk)
    return Trial(
        plain * steps.total / float(tried.sum()),
        stacked * steps.lockstep / float(tried.max()),
        steps.idle,
        tuple(unknown),
    )


@torch.no_grad()
def evaluate_stacked(model: Model, probe: Federation) -> None:
    """Evaluate two models under vmap: a module may train under vmap but fail to evaluate under it."""
    params, buffers = (
        {k: torch.stack([v, v]) for k, v in tree_to(part, probe.dtype, probe.pool.x.device).items()}
        for part in model.init(0)
    )
    x, y = probe.prepare(probe.pool.x[:2]), probe.pool.y[:2]
    key = torch.zeros(2, dtype=torch.int64, device=y.device)
    batch = Batch(x, y, torch.ones(len(y), dtype=x.dtype, device=x.device), key)
    vmap(lambda params, buffers: model.apply(params, buffers, batch, False)[0].logits)(params, buffers)


def replayed(
    model: Model, federation: Federation, stage: Stage, per_round: int, rounds: int, chunk: int,
    streams: int, precision: str, cost: float, say: Callable[[str], None], reason: str,
) -> Choice:  # fmt: skip
    """Captured graphs, on so many streams or on as many as are best for this work."""
    rows = bucket(chunk)

    def to_come() -> float:
        probe, work = shrunk(federation, stage, chunk)
        eager = timed(Stacked(model, probe, chunk), model, probe, work)
        steps, tried = steps_of_round(federation, stage, per_round, chunk), client_steps(probe, work)
        return rounds * eager * steps.lockstep / float(tried.max()) / GRAPHS_GAIN

    def seconds(count: int) -> float:
        probe, work = shrunk(federation, stage, chunk, STREAM_STEPS)
        return timed(captured_stack(model, probe, chunk, streams=count), model, probe, work)

    if not streams and rows > 1:
        streams = best(model, federation, stage, rows, precision, seconds, to_come, cost, say)
    return Choice("captured", True, chunk, reason, streams or 1)


def has_compiler() -> bool:
    """Whether torch can compile here."""
    return any(shutil.which(name) for name in (os.environ.get("CXX", "g++"), "clang++"))


def program_count(model: Model, federation: Federation, stage: Stage) -> int:
    """Programs of a round: one for each trainable set of the longest client's schedule."""
    sizes = np.array([len(own) for own in federation.clients])
    steps = stage.local.epochs * int(step_counts(sizes, stage.local)[1].max())
    schedule, units = stage.algorithm.schedule, len(model.units)
    return len({schedule(Clock(0, 0, step, steps), units) for step in range(steps)})


def shrunk(
    federation: Federation, stage: Stage, chunk: int, steps: int = PROBE_STEPS
) -> tuple[Federation, Stage]:
    """The largest clients with a few batches each: the same shapes, little work."""
    largest = sorted(federation.clients, key=len, reverse=True)[:chunk]
    some = tuple(own[: steps * stage.local.batch] for own in largest)
    return replace(federation, clients=some), replace(stage, local=replace(stage.local, epochs=1))


def timed(engine: Engine, model: Model, federation: Federation, stage: Stage) -> float:
    """Seconds of one round of the probe, after one to warm up; the better of two."""
    params, buffers = (tree_to(v, federation.dtype, federation.pool.x.device) for v in model.init(0))
    server = initial_server(stage.algorithm, model, params, buffers)
    order = Order(0, 0, 0, server.shared, server.buffers, broadcast(stage.algorithm, server))
    engine.begin(stage, params, frozenset())
    clients = list(range(len(federation.clients)))
    seconds = []
    for _ in range(3):
        start = time.perf_counter()
        engine.train(order, clients).reply()
        if federation.pool.x.device.type == "cuda":
            torch.cuda.synchronize()
        seconds.append(time.perf_counter() - start)
    return min(seconds[1:])
