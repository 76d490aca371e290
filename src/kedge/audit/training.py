"""Training on small problems: by the runner, or round by round with an engine alone."""

from collections.abc import Sequence
from typing import Any

from kedge.config.task import Task
from kedge.core.algorithm import Algorithm, LocalTraining, Stage
from kedge.core.model import Model
from kedge.core.server import Server, broadcast, initial_server, server_update
from kedge.core.tree import tree_to
from kedge.data.federation import Federation
from kedge.engines.engine import Engine, Order
from kedge.engines.sequential import Sequential
from kedge.engines.stack.stacked import Stacked
from kedge.running.progress import Progress
from kedge.running.runner import run

ENGINES: dict[str, type[Sequential] | type[Stacked]] = {"sequential": Sequential, "stacked": Stacked}


def train_all_clients(
    algorithm: Algorithm, local: LocalTraining, rounds: int, data: Federation, model: Model, engine: Engine
) -> Progress:
    """Run `rounds` rounds in which every client trains, by the runner."""
    return run(Task((Stage(algorithm, rounds, local),), model, data), engine)


def train_rounds(
    algorithm: Algorithm,
    local: LocalTraining,
    engine: Engine,
    model: Model,
    data: Federation,
    cohorts: Sequence[Sequence[int]],
) -> Server:
    """Train one round for each of `cohorts` with the engine alone, without the runner."""
    params, buffers = (tree_to(part, data.dtype) for part in model.init(0))
    server = initial_server(algorithm, model, params, buffers)
    engine.begin(Stage(algorithm, len(cohorts), local), params, frozenset())
    for round, clients in enumerate(cohorts):
        order = Order(round, round, 7, server.shared, server.buffers, broadcast(algorithm, server))
        reply = engine.train(order, clients).reply()
        if reply.size != len(clients):
            raise RuntimeError(f"{len(clients)} clients trained, {reply.size} uploads were admitted")
        server = server_update(algorithm, server, reply, len(data.clients), round)
    return server


def run_state(server: Server, engine: Engine) -> dict[str, Any]:
    """All state of a run: the server's, and every client's memory."""
    return {"server": server._asdict(), "clients": dict(engine.save())}
