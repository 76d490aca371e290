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
        if self.idle > MANY_IDLE_STEPS:
            found.append(
                f"a stack waits for its longest client: it takes {self.idle:.1f} times the clients' steps"
            )
        return found


def run_trial(work: Work, chunk: int, alone: bool) -> Trial:
    """Time a few steps on the stacked engine, and if `alone` on the sequential engine as well."""
    model = work.model
    data, stage = shrink(work, chunk)
    plain = timed(Sequential(model, data), model, data, stage) if alone else float("inf")
    with collect_fallback_operators() as unknown:
        stacked = timed(Stacked(model, data, chunk), model, data, stage)
        if alone:
            evaluate_stacked(model, data)
    tried = client_steps(data, stage)
    steps = steps_of_round(work.federation, work.stage, work.per_round, chunk)
    return Trial(
        plain * steps.total / float(tried.sum()),
        stacked * steps.lockstep / float(tried.max()),
        steps.idle,
        tuple(unknown),
    )


def stacked_seconds(work: Work, chunk: int) -> float:
    """The estimated seconds of a round of a stack that is not compiled."""
    data, stage = shrink(work, chunk)
    seconds = timed(Stacked(work.model, data, chunk), work.model, data, stage)
    steps = steps_of_round(work.federation, work.stage, work.per_round, chunk)
    return seconds * steps.lockstep / float(client_steps(data, stage).max())


def captured_seconds(work: Work, chunk: int, streams: int) -> float:
    """The seconds of the same few steps for every number of streams, from captured graphs."""
    data, stage = shrink(work, chunk, STREAM_STEPS)
    engine = captured_stack(work.model, data, chunk, streams=streams)
    return timed(engine, work.model, data, stage)


@torch.no_grad()
def evaluate_stacked(model: Model, data: Federation) -> None:
    """Evaluate two models under vmap: a module may train under vmap but fail to evaluate under it."""
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
    stage, sizes = work.stage, np.array([len(own) for own in work.federation.clients])
    steps = stage.local.epochs * int(step_counts(sizes, stage.local)[1].max())
    schedule, units = stage.algorithm.schedule, len(work.model.units)
    return len({schedule(Clock(0, 0, step, steps), units) for step in range(steps)})


def shrink(work: Work, chunk: int, steps: int = PROBE_STEPS) -> tuple[Federation, Stage]:
    """The largest clients with `steps` batches each: the same shapes, little work."""
    stage = work.stage
    largest = sorted(work.federation.clients, key=len, reverse=True)[:chunk]
    some = tuple(own[: steps * stage.local.batch] for own in largest)
    return replace(work.federation, clients=some), replace(stage, local=replace(stage.local, epochs=1))


def timed(engine: Engine, model: Model, federation: Federation, stage: Stage) -> float:
    """Seconds of one round of all clients: the better of two, after one to warm up."""
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
