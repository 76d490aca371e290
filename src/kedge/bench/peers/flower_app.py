"""Flower's simulation of a workload, in a process of its own that does a round when asked.

Its strategy waits before every round for a line on standard input: `round` lets it go on, `model` makes it
write the averaged model to the folder, the end of input ends the simulation. It answers on standard output:
`ready` before each round, `saved`, or `failed` and why. The folder holds what the clients train on (`put`).
Between rounds its processes keep network and data on their device: no arrangement is faster for Flower.
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

ROUNDS = 10**6  # more than anybody asks for


class Plan(NamedTuple):
    """What is simulated, and how many clients train side by side."""

    work: Workload
    device: str
    workers: int


class Held(NamedTuple):
    """What a process of Flower's keeps between clients."""

    work: Workload
    module: nn.Module
    x: Tensor
    y: Tensor
    shares: list[Tensor]


def put(folder: Path, plan: Plan, data: Federation) -> None:
    """Write down what the simulation needs."""
    np.save(folder / "x.npy", data.pool.x.cpu().numpy())
    np.save(folder / "y.npy", data.pool.y.cpu().numpy())
    (folder / "plan.pickle").write_bytes(pickle.dumps((plan, data.clients)))


@lru_cache(maxsize=1)
def held(folder: str) -> Held:
    """The network and the data of this process, read once."""
    torch.set_num_threads(1)  # one CPU a client
    plan, clients = pickle.loads((Path(folder) / "plan.pickle").read_bytes())
    # Copy on write: the processes share the pages, and torch may not warn that they cannot be written.
    x, y = (
        torch.from_numpy(np.load(Path(folder) / f"{name}.npy", mmap_mode="c")).to(plan.device)
        for name in ("x", "y")
    )
    shares = [torch.from_numpy(own).to(plan.device) for own in clients]
    return Held(plan.work, plan.work.module().to(plan.device), x, y, shares)


def train(message: Any, context: Any) -> Any:
    """One client's epoch."""
    from flwr.app import ArrayRecord, Message, MetricRecord, RecordDict

    own = held(message.content["config"]["folder"])
    own.module.load_state_dict(message.content["arrays"].to_torch_state_dict())
    optimizer = own.work.optimizer(own.module)
    index = own.shares[context.node_config["partition-id"]]
    order = index[torch.randperm(len(index), device=index.device)]
    for batch in torch.split(order, own.work.batch):
        sgd_step(own.module, optimizer, own.work.clip, own.x[batch], own.y[batch])
    content = {
        "arrays": ArrayRecord(own.module.state_dict()),
        "metrics": MetricRecord({"num-examples": len(index)}),
    }
    return Message(content=RecordDict(content), reply_to=message)


def waiting(configure: Callable[..., Any], folder: Path, answers: TextIO) -> Callable[..., Any]:
    """A strategy's `configure_train` that first waits to be asked for a round."""

    def configured(number: int, arrays: Any, config: Any, grid: Any) -> Any:
        print("ready", file=answers, flush=True)
        for line in sys.stdin:
            if line.strip() == "round":
                return configure(number, arrays, config, grid)
            np.savez(folder / "model.npz", **{name: array.numpy() for name, array in arrays.items()})
            print("saved", file=answers, flush=True)
        raise SystemExit  # ends the server's thread, and with it the simulation

    return configured


def complete(aggregate: Callable[..., Any], clients: int, answers: TextIO) -> Callable[..., Any]:
    """A strategy's `aggregate_train` that insists on every client's reply; Flower's goes on without."""

    def aggregated(number: int, replies: Iterable[Any]) -> Any:
        whole = list(replies)
        wrong = [reply.error.reason for reply in whole if reply.has_error()]
        if wrong or len(whole) != clients:
            reason = wrong[0] if wrong else f"{len(whole)} of {clients} clients replied"
            print("failed", " ".join(reason.split()), file=answers, flush=True)
            raise SystemExit
        return aggregate(number, whole)

    return aggregated


def simulate(name: str) -> None:
    """Run the simulation until standard input ends."""
    folder = Path(name)
    # Flower and Ray print what they like; the answers have a channel of their own.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    from flwr.app import ArrayRecord, ConfigRecord
    from flwr.clientapp import ClientApp
    from flwr.serverapp import ServerApp
    from flwr.serverapp.strategy import FedAvg
    from flwr.simulation import run_simulation

    plan, _ = pickle.loads((folder / "plan.pickle").read_bytes())
    work, workers = plan.work, plan.workers

    def serve(grid: Any, context: Any) -> None:
        strategy = FedAvg(
            fraction_train=work.per_round / work.clients,
            min_train_nodes=work.per_round,
            min_available_nodes=work.clients,
            fraction_evaluate=0.0,
        )
        strategy.configure_train = waiting(strategy.configure_train, folder, answers)
        strategy.aggregate_train = complete(strategy.aggregate_train, work.per_round, answers)
        first = ArrayRecord(work.module().state_dict())
        strategy.start(grid, first, ROUNDS, train_config=ConfigRecord({"folder": str(folder)}))

    server, client = ServerApp(), ClientApp()
    server.main()(serve)
    client.train()(train)
    # Ray counts in thousandths: a share that is rounded up would leave the last worker without a place.
    share = (1000 // workers) / 1000 if plan.device == "cuda" else 0.0
    run_simulation(
        server,
        client,
        work.clients,
        backend_config={
            "init_args": {"num_cpus": workers},
            "client_resources": {"num_cpus": 1, "num_gpus": share},
        },
    )
