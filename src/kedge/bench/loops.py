"""Plain PyTorch loops to compare with: one client after another, and one central model."""

import copy

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from kedge.bench.rounds import Round
from kedge.bench.workloads import Workload
from kedge.data.federation import Federation


def sgd_step(
    module: nn.Module, optimizer: torch.optim.Optimizer, clip: float | None, x: Tensor, y: Tensor
) -> None:
    """Take one step of plain PyTorch: forward, backward, clip, optimizer."""
    optimizer.zero_grad()
    torch.autograd.backward(F.cross_entropy(module(x), y))
    if clip is not None:
        torch.nn.utils.clip_grad_norm_(module.parameters(), clip)
    optimizer.step()


def plain_loop(work: Workload, data: Federation) -> Round:
    """Rounds of FedAvg as reference codes write them: each client in turn trains a copy of the module."""
    device = data.pool.y.device
    server = work.module().to(device)
    local = copy.deepcopy(server)
    indices = [torch.from_numpy(samples).to(device) for samples in data.clients]

    def round(number: int) -> int:
        mean = {name: torch.zeros_like(value) for name, value in server.state_dict().items()}
        cohort = torch.randperm(work.clients)[: work.per_round].tolist()
        for client in cohort:
            local.load_state_dict(server.state_dict())
            optimizer = work.optimizer(local)
            order = indices[client][torch.randperm(work.samples, device=device)]
            for batch in torch.split(order, work.batch):
                sgd_step(local, optimizer, work.clip, data.pool.x[batch], data.pool.y[batch])
            for name, value in local.state_dict().items():
                is_count = not value.is_floating_point()  # batch norm's num_batches_tracked
                mean[name] += value // len(cohort) if is_count else value / len(cohort)
        server.load_state_dict(mean)
        return work.per_round * work.samples

    return round


def central(work: Workload, data: Federation) -> Round:
    """Rounds of one model: as many samples as a federated round, in the batches of all clients together."""
    device = data.pool.y.device
    module = work.module().to(device)
    optimizer = work.optimizer(module)

    def round(number: int) -> int:
        order = torch.randperm(len(data.pool), device=device)[: work.per_round * work.samples]
        for batch in torch.split(order, work.per_round * work.batch):
            sgd_step(module, optimizer, work.clip, data.pool.x[batch], data.pool.y[batch])
        return work.per_round * work.samples

    return round
