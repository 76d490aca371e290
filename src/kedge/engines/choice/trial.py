"""Trial: the seconds of a round on each engine, estimated from a few steps of the real work."""

import time
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import torch
from torch.func import vmap

from kedge.core.algorithm import Stage
from kedge.core.model import Batch, Model
from kedge.core.schedules import Clock
from kedge.core.server import broadcast, initial_server
from kedge.core.tree import tree_to
from kedge.data.batches import step_counts
from kedge.data.federation import Federation
from kedge.engines.choice.fallback import collect_fallback_operators
from kedge.engines.choice.lockstep import client_steps, steps_of_round
from kedge.engines.cuda.captured import captured_stack
from kedge.engines.engine import Engine, Order
from kedge.engines.sequential import Sequential
from kedge.engines.stack.stacked import Stacked

PROBE_STEPS = 2  # steps of each client in a trial
STREAM_STEPS = 16  # enough for a graph of several steps
MANY_IDLE_STEPS = 2.0  # steps of a stack's rows divided by its clients' steps: a larger ratio is reported


class Work(NamedTuple):
    """The training that an engine is chosen for."""

    model: Model
    federation: Federation
    stage: Stage
    per_round: int  # clients of a round
    rounds: int


@dataclass(frozen=True)
class Trial:
    """The estimated cost of a round, measured on a few of its steps."""

    sequential: float  # seconds on the sequential engine; infinite if not measured
    stacked: float  # seconds on the stacked engine; each chunk waits for its longest client
    idle: float  # steps of the stack's rows divided by steps of its clients
    fallback_operators: tuple[str, ...]  # operators that vmap computes client by client

    def fallback_message(self) -> str:
        """A sentence that names the operators which a stack computes client by client."""
        return f"torch's vmap computes {', '.join(self.fallback_operators)} client by client"

    def reasons(self) -> list[str]:
        """The reasons why a stack is slow."""
        found = [self.fallback_message()] if self.fallback_operators else []
        if self.idle > MANY_IDLE_STEPS:
            found.append(
                f"a stack waits for its longest client: it takes {self.idle:.1f} times the clients' steps"
            )
        return found


def run_trial(work: Work, chunk: int, try_sequential: bool) -> Trial:
    """Time a few steps on the stacked engine, and if `try_sequential` on the sequential engine as well."""
    model = work.model
    data, stage = shrink(work, chunk)
    sequential = timed(Sequential(model, data), model, data, stage) if try_sequential else float("inf")
    with collect_fallback_operators() as fallback_operators:
        stacked = timed(Stacked(model, data, chunk), model, data, stage)
        if try_sequential:
            evaluate_stacked(model, data)
    tried_steps = client_steps(data, stage)
    steps = steps_of_round(work.federation, work.stage, work.per_round, chunk)
    return Trial(
        sequential * steps.total / float(tried_steps.sum()),
        stacked * steps.lockstep / float(tried_steps.max()),
        steps.idle,
        tuple(fallback_operators),
    )


def stacked_seconds(work: Work, chunk: int) -> float:
    """The estimated seconds of a round of a stack that is not compiled."""
    data, stage = shrink(work, chunk)
    seconds = timed(Stacked(work.model, data, chunk), work.model, data, stage)
    steps = steps_of_round(work.federation, work.stage, work.per_round, chunk)
    return seconds * steps.lockstep / float(client_steps(data, stage).max())


def captured_seconds(work: Work, chunk: int, streams: int) -> float:
    """The seconds of STREAM_STEPS steps of each client, from captured graphs on `streams` streams."""
    data, stage = shrink(work, chunk, STREAM_STEPS)
    engine = captured_stack(work.model, data, chunk, streams=streams)
    return timed(engine, work.model, data, stage)


@torch.no_grad()
def evaluate_stacked(model: Model, data: Federation) -> None:
    """Evaluate two models under vmap; raises if the module can be trained but not evaluated under vmap."""
    params, buffers = (
        {k: torch.stack([v, v]) for k, v in tree_to(part, data.dtype, data.pool.x.device).items()}
        for part in model.init(0)
    )
    x, y = data.prepare(data.pool.x[:2]), data.pool.y[:2]
    key = torch.zeros(2, dtype=torch.int64, device=y.device)
    batch = Batch(x, y, torch.ones(len(y), dtype=x.dtype, device=x.device), key)
    vmap(lambda params, buffers: model.apply(params, buffers, batch, False)[0].logits)(params, buffers)


def program_count(work: Work) -> int:
    """The number of programs of a round: one per trainable set of the longest client's schedule."""
    stage, sizes = work.stage, np.array([len(samples) for samples in work.federation.clients])
    steps = stage.local.epochs * int(step_counts(sizes, stage.local)[1].max())
    schedule, units = stage.algorithm.schedule, len(work.model.units)
    return len({schedule(Clock(0, 0, step, steps), units) for step in range(steps)})


def shrink(work: Work, chunk: int, steps: int = PROBE_STEPS) -> tuple[Federation, Stage]:
    """A federation of the `chunk` largest clients with `steps` batches each, and a stage of one epoch.

    Its tensors have the shapes of the whole work.
    """
    stage = work.stage
    largest = sorted(work.federation.clients, key=len, reverse=True)[:chunk]
    shortened = tuple(samples[: steps * stage.local.batch] for samples in largest)
    return replace(work.federation, clients=shortened), replace(stage, local=replace(stage.local, epochs=1))


def timed(engine: Engine, model: Model, federation: Federation, stage: Stage) -> float:
    """The seconds of a round of all clients: the faster of two rounds, after one to warm up."""
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
