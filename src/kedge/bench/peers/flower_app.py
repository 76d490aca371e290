"""Flower's simulation of a workload, in a process that trains a round on request.

Before each round the strategy prints `ready` on standard output and reads a line from standard input:

    round    train the round
    model    write the averaged model to the folder, and print `saved`

The end of standard input ends the simulation. If a client fails, it prints `failed` with the reason. The
folder contains the plan and the data (`save_plan`). Flower's processes keep network and data on their device
between rounds: no arrangement is faster for Flower.
"""

import os
import pickle
import sys
from collections.abc import Callable, Iterable
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple, TextIO

import numpy as np
import torch
from torch import Tensor, nn

from kedge.bench.loops import sgd_step
from kedge.bench.workloads import Workload
from kedge.data.federation import Federation

ROUNDS = 10**6  # more than any benchmark requests


class Plan(NamedTuple):
    """The workload, its device, and the number of clients that train at the same time."""

    work: Workload
    device: str
    workers: int


class Worker(NamedTuple):
    """The network and data that a process of Flower keeps between clients."""

    work: Workload
    module: nn.Module
    x: Tensor
    y: Tensor
    shares: list[Tensor]


def save_plan(folder: Path, plan: Plan, data: Federation) -> None:
    """Write the plan and the data of a simulation to its folder."""
    np.save(folder / "x.npy", data.pool.x.cpu().numpy())
    np.save(folder / "y.npy", data.pool.y.cpu().numpy())
    (folder / "plan.pickle").write_bytes(pickle.dumps((plan, data.clients)))


@lru_cache(maxsize=1)
def load_worker(folder: str) -> Worker:
    """Read the network and the data of this process, once."""
    torch.set_num_threads(1)  # each client has one CPU
    plan, clients = pickle.loads((Path(folder) / "plan.pickle").read_bytes())
    # Copy on write: all processes share the pages, and torch does not warn of read-only arrays.
    x, y = (
        torch.from_numpy(np.load(Path(folder) / f"{name}.npy", mmap_mode="c")).to(plan.device)
        for name in ("x", "y")
    )
    shares = [torch.from_numpy(indices).to(plan.device) for indices in clients]
    return Worker(plan.work, plan.work.module().to(plan.device), x, y, shares)


def train(message: Any, context: Any) -> Any:
    """Train one client for an epoch, and reply with its weights."""
    from flwr.app import ArrayRecord, Message, MetricRecord, RecordDict

    worker = load_worker(message.content["config"]["folder"])
    worker.module.load_state_dict(message.content["arrays"].to_torch_state_dict())
    optimizer = worker.work.optimizer(worker.module)
    index = worker.shares[context.node_config["partition-id"]]
    order = index[torch.randperm(len(index), device=index.device)]
    for batch in torch.split(order, worker.work.batch):
        sgd_step(worker.module, optimizer, worker.work.clip, worker.x[batch], worker.y[batch])
    content: dict[str, Any] = {
        "arrays": ArrayRecord(worker.module.state_dict()),
        "metrics": MetricRecord({"num-examples": len(index)}),
    }
    return Message(content=RecordDict(content), reply_to=message)


def configure_on_request(configure: Callable[..., Any], folder: Path, answers: TextIO) -> Callable[..., Any]:
    """A `configure_train` of a strategy that waits until a round is requested."""

    def configure_train(number: int, arrays: Any, config: Any, grid: Any) -> Any:
        print("ready", file=answers, flush=True)
        for line in sys.stdin:
            if line.strip() == "round":
                return configure(number, arrays, config, grid)
            np.savez(folder / "model.npz", **{name: array.numpy() for name, array in arrays.items()})
            print("saved", file=answers, flush=True)
        raise SystemExit  # ends the server's thread, and with it the simulation

    return configure_train


def require_all_replies(aggregate: Callable[..., Any], clients: int, answers: TextIO) -> Callable[..., Any]:
    """An `aggregate_train` of a strategy that fails unless all clients replied; Flower's would continue."""

    def aggregate_train(number: int, replies: Iterable[Any]) -> Any:
        received = list(replies)
        errors = [reply.error.reason for reply in received if reply.has_error()]
        if errors or len(received) != clients:
            reason = errors[0] if errors else f"{len(received)} of {clients} clients replied"
            print("failed", " ".join(reason.split()), file=answers, flush=True)
            raise SystemExit
        return aggregate(number, received)

    return aggregate_train


def strategy_of(work: Workload, folder: Path, answers: TextIO) -> Any:
    """Flower's FedAvg, round by round on request."""
    from flwr.serverapp.strategy import FedAvg

    strategy: Any = FedAvg(
        fraction_train=work.per_round / work.clients,
        min_train_nodes=work.per_round,
        min_available_nodes=work.clients,
        fraction_evaluate=0.0,
    )
    strategy.configure_train = configure_on_request(strategy.configure_train, folder, answers)
    strategy.aggregate_train = require_all_replies(strategy.aggregate_train, work.per_round, answers)
    return strategy


def redirect_output() -> TextIO:
    """Send standard output to standard error, since Flower and Ray print; return a stream for the answers."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    return answers


def simulate(name: str) -> None:
    """Run the simulation of a folder until standard input ends."""
    folder, answers = Path(name), redirect_output()
    from flwr.app import ArrayRecord, ConfigRecord
    from flwr.clientapp import ClientApp
    from flwr.serverapp import ServerApp
    from flwr.simulation import run_simulation

    plan, _ = pickle.loads((folder / "plan.pickle").read_bytes())
    work, workers = plan.work, plan.workers

    def serve(grid: Any, context: Any) -> None:
        start = ArrayRecord(work.module().state_dict())
        config = ConfigRecord({"folder": str(folder)})
        strategy_of(work, folder, answers).start(grid, start, ROUNDS, train_config=config)

    server, client = ServerApp(), ClientApp()
    server.main()(serve)
    client.train()(train)
    # Ray counts in thousandths: with a share that is rounded up, the last worker would get no GPU.
    share = (1000 // workers) / 1000 if plan.device == "cuda" else 0.0
    resources = {"num_cpus": 1, "num_gpus": share}
    backend = {"init_args": {"num_cpus": workers}, "client_resources": resources}
    run_simulation(server, client, work.clients, backend_config=backend)
