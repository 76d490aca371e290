"""Training with torch.optim alone, and the small perceptron written out."""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor
from torch.nn import functional as F

from kedge.algorithms import fedavg
from kedge.core.algorithm import LocalTraining
from kedge.core.model import Model
from kedge.core.optimizers import SGD
from kedge.core.tree import Leaves
from kedge.data.batches import plan
from kedge.data.federation import Federation

Loss = Callable[[Leaves, Leaves, Tensor, Tensor], Tensor]  # w, w at the start of the round, x, y
Opened = Callable[[int, int], Sequence[bool]]  # a local step, counted from 1, and how many there are


def bottom_up(percent: int, step: int, steps: int) -> Sequence[bool]:
    """Of three units the first min(3, ⌈3k/(PK)⌉) in whole numbers, P in percent; 0 percent: all."""
    opened = 3 if not percent else min(3, -(-step * 3 * 100 // (percent * steps)))
    return [unit < opened for unit in range(3)]


def proximal(mu: float, w: Leaves, start: Leaves, x: Tensor, y: Tensor) -> Tensor:
    """Cross-entropy and μ/2 ‖w − wᵗ‖²."""
    away = torch.stack([((v - start[k]) ** 2).sum() for k, v in w.items()]).sum()
    return F.cross_entropy(forward(w, x), y) + mu / 2 * away


def torch_sgd(
    local: LocalTraining,
    rounds: int,
    data: Federation,
    model: Model,
    loss: Loss,
    opened: Opened,
    client: int = 0,
) -> Leaves:
    """One client alone by torch.optim: frozen parameters have no gradient."""
    own = data.clients[client]
    params = {k: v.requires_grad_() for k, v in model.init(0)[0].items()}
    sgd = local.optimizer
    assert isinstance(sgd, SGD)
    for round in range(rounds):
        optimizer = torch.optim.SGD(
            params.values(), sgd.rate(round), momentum=sgd.momentum, weight_decay=sgd.weight_decay
        )
        start = {k: v.detach().clone() for k, v in params.items()}
        index = plan([own], [client], local, fedavg().schedule, 1, 0, round, round)
        for step, (rows, weight) in enumerate(zip(index.index[:, 0], index.weight[:, 0], strict=True), 1):
            chosen = torch.from_numpy(rows[weight > 0])
            optimizer.zero_grad()
            value = loss(params, start, data.prepare(data.pool.x[chosen]), data.pool.y[chosen])
            value.backward()  # type: ignore[no-untyped-call]  # torch leaves it untyped
            for unit, is_open in zip(model.units, opened(step, len(index.index)), strict=True):
                for k in () if is_open else unit:
                    params[k].grad = None
            clip(params, local.clip)
            optimizer.step()
    return {k: v.detach() for k, v in params.items()}


def features(params: Leaves, x: Tensor) -> Tensor:
    """What the small perceptron's classifier is given; MOON may have put a projection before it."""
    for layer in ("0", "2"):
        x = torch.tanh(F.linear(x, params[f"{layer}.weight"], params[f"{layer}.bias"]))
    if "4.weight" in params:
        return x
    inner, outer = ((params[f"4.projection.{n}.weight"], params[f"4.projection.{n}.bias"]) for n in (0, 2))
    return F.linear(torch.relu(F.linear(x, *inner)), *outer)


def forward(params: Leaves, x: Tensor) -> Tensor:
    """The small perceptron, written out."""
    head = "4" if "4.weight" in params else "4.classifier"
    return F.linear(features(params, x), params[f"{head}.weight"], params[f"{head}.bias"])


def clip(params: Leaves, limit: float | None) -> None:
    """g·min(1, c/‖g‖) exactly; torch's own adds 1e-6 to the norm."""
    grads = [v.grad for v in params.values() if v.grad is not None]
    norm = float(torch.cat([g.flatten() for g in grads]).norm())
    if limit is not None and norm > limit:
        for g in grads:
            g *= limit / norm
