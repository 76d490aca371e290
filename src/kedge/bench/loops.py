"""What federation is measured against: the plain loop over clients, and one central model."""

import copy
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from kedge.bench.workloads import Workload
from kedge.data.federation import Federation

Round = Callable[[int], int]  # number of the round -> samples trained on


def sgd_step(
    module: nn.Module, optimizer: torch.optim.Optimizer, clip: float | None, x: Tensor, y: Tensor
) -> None:
    """The usual five lines."""
    optimizer.zero_grad()
    torch.autograd.backward(F.cross_entropy(module(x), y))
    if clip is not None:
        torch.nn.utils.clip_grad_norm_(module.parameters(), clip)
    optimizer.step()


def plain_loop(work: Workload, data: Federation) -> Round:
    """FedAvg as reference codes write it: one client after another, module and torch.optim."""
    device = data.pool.y.device
    server = work.module().to(device)
    local = copy.deepcopy(server)
    index = [torch.from_numpy(own).to(device) for own in data.clients]

    def round(number: int) -> int:
        mean = {k: torch.zeros_like(v) for k, v in server.state_dict().items()}
        chosen = torch.randperm(work.clients)[: work.per_round].tolist()
        for client in chosen:
            local.load_state_dict(server.state_dict())
            optimizer = work.optimizer(local)
            order = index[client][torch.randperm(work.samples, device=device)]
            for batch in torch.split(order, work.batch):
                sgd_step(local, optimizer, work.clip, data.pool.x[batch], data.pool.y[batch])
            for k, v in local.state_dict().items():
                mean[k] += v / len(chosen) if v.is_floating_point() else v // len(chosen)  # counts of batches
        server.load_state_dict(mean)
        return work.per_round * work.samples

    return round


def central(work: Workload, data: Federation) -> Round:
    """One model on as many samples, in batches of all clients together."""
    device = data.pool.y.device
    module = work.module().to(device)
    optimizer = work.optimizer(module)

    def round(number: int) -> int:
        order = torch.randperm(len(data.pool), device=device)[: work.per_round * work.samples]
        for batch in torch.split(order, work.per_round * work.batch):
            sgd_step(module, optimizer, work.clip, data.pool.x[batch], data.pool.y[batch])
        return work.per_round * work.samples

    return round
