"""Rounds of a run on an engine, without the runner: no evaluation, no history, no checkpoints."""

from collections.abc import Callable
from dataclasses import dataclass

from kedge.config.task import Task
from kedge.core.server import Server, broadcast, initial_server, server_update
from kedge.core.tree import tree_to
from kedge.engines.engine import Assignment, Engine, Order, Rounds, drive

Round = Callable[[int], int]  # trains the round with this number, returns its number of samples


@dataclass
class Run:
    """A task with one stage, and its server after the last round."""

    task: Task
    server: Server


def start_run(task: Task, engine: Engine) -> Run:
    """Start the only stage of a task on an engine."""
    stage, data = task.stages[0], task.federation
    params, buffers = (tree_to(part, data.dtype, data.pool.x.device) for part in task.model.init(task.seed))
    engine.begin(stage, params, frozenset())
    return Run(task, initial_server(stage.algorithm, task.model, params, buffers))


def train_round(run: Run, number: int) -> Rounds[int]:
    """Train one round and update the run's server. Return the number of samples."""
    task, server = run.task, run.server
    algorithm, clients = task.stages[0].algorithm, task.participants(number)
    order = Order(number, number, task.seed, server.shared, server.buffers, broadcast(algorithm, server))
    reply = yield Assignment(order, clients)
    run.server = server_update(algorithm, server, reply, len(task.federation.clients), number)
    return sum(len(task.federation.clients[client]) for client in clients)


def rounds_of(
    task: Task, engine: Engine, after_round: Callable[[Server, Engine], None] | None = None
) -> Round:
    """Rounds of a new run; `after_round` is called with the server and the engine after each of them."""
    run = start_run(task, engine)

    def round(number: int) -> int:
        samples = drive(train_round(run, number), engine)
        if after_round:
            after_round(run.server, engine)
        return samples

    return round
