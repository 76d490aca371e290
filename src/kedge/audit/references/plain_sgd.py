"""Training of one client by torch.optim alone, and the forward pass of the small perceptron."""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor
from torch.nn import functional as F

from kedge.algorithms import fedavg
from kedge.core.algorithm import LocalTraining
from kedge.core.model import Model
from kedge.core.optimizers import SGD
from kedge.core.tree import Leaves
from kedge.data.batches import PlanSettings, RoundNumbers, plan
from kedge.data.federation import Federation

Loss = Callable[[Leaves, Leaves, Tensor, Tensor], Tensor]  # w, w at the start of the round, x, y
OpenUnits = Callable[[int, int], Sequence[bool]]  # local step from 1, number of steps -> a flag for each unit


def open_bottom_up(percent: int, step: int, steps: int) -> Sequence[bool]:
    """FedBug's schedule for three units: the first min(3, ⌈3k/(P·K)⌉) train. `percent` is P; 0 opens all."""
    opened = 3 if not percent else min(3, -(-step * 3 * 100 // (percent * steps)))
    return [unit < opened for unit in range(3)]


def proximal_loss(mu: float, w: Leaves, start: Leaves, x: Tensor, y: Tensor) -> Tensor:
    """Cross-entropy and μ/2 ‖w − wᵗ‖²."""
    squared_distance = torch.stack([((v - start[k]) ** 2).sum() for k, v in w.items()]).sum()
    return F.cross_entropy(logits(w, x), y) + mu / 2 * squared_distance


def train_by_torch(  # noqa: PLR0913  # the whole reference in one call
    local: LocalTraining,
    rounds: int,
    data: Federation,
    model: Model,
    loss: Loss,
    opened: OpenUnits,
    client: int = 0,
) -> Leaves:
    """Train one client alone by torch.optim. The gradients of frozen parameters are None."""
    samples = data.clients[client]
    params = {k: v.requires_grad_() for k, v in model.init(0)[0].items()}
    sgd = local.optimizer
    assert isinstance(sgd, SGD)
    for round in range(rounds):
        optimizer = torch.optim.SGD(
            params.values(), sgd.rate(round), momentum=sgd.momentum, weight_decay=sgd.weight_decay
        )
        start = {k: v.detach().clone() for k, v in params.items()}
        settings = PlanSettings(local, fedavg().schedule, 1)
        batches = plan([samples], [client], settings, RoundNumbers(0, round, round))
        for step, (rows, weight) in enumerate(zip(batches.index[:, 0], batches.weight[:, 0], strict=True), 1):
            batch = torch.from_numpy(rows[weight > 0])
            optimizer.zero_grad()
            value = loss(params, start, data.prepare(data.pool.x[batch]), data.pool.y[batch])
            value.backward()  # type: ignore[no-untyped-call]  # torch leaves it untyped
            for unit, is_open in zip(model.units, opened(step, len(batches.index)), strict=True):
                for k in () if is_open else unit:
                    params[k].grad = None
            clip_gradients(params, local.clip)
            optimizer.step()
    return {k: v.detach() for k, v in params.items()}


def features(params: Leaves, x: Tensor) -> Tensor:
    """The input of the small perceptron's classifier; with MOON, after a projection."""
    for layer in ("0", "2"):
        x = torch.tanh(F.linear(x, params[f"{layer}.weight"], params[f"{layer}.bias"]))
    if "4.weight" in params:
        return x
    inner, outer = ((params[f"4.projection.{n}.weight"], params[f"4.projection.{n}.bias"]) for n in (0, 2))
    return F.linear(torch.relu(F.linear(x, *inner)), *outer)


def logits(params: Leaves, x: Tensor) -> Tensor:
    """The logits of the small perceptron."""
    head = "4" if "4.weight" in params else "4.classifier"
    return F.linear(features(params, x), params[f"{head}.weight"], params[f"{head}.bias"])


def clip_gradients(params: Leaves, limit: float | None) -> None:
    """Clip the gradients to g·min(1, c/‖g‖). torch's clip_grad_norm_ adds 1e-6 to the norm."""
    grads = [v.grad for v in params.values() if v.grad is not None]
    norm = float(torch.cat([g.flatten() for g in grads]).norm())
    if limit is not None and norm > limit:
        for g in grads:
            g *= limit / norm
