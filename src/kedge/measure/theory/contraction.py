"""What theory says of the linear laboratory: by how much a round contracts the clients' discrepancy.

θ_j is the angle between client j's local update, along (∂f/∂n_j, ∂f/∂v), and the axis of v:

    cos²θ_j = (∂f/∂v)² / ((∂f/∂n_j)² + (∂f/∂v)²);  n_j²/(n_j² + v²) multiplicative, ½ additive

Near the minimum, with local training that comes to rest, cos²θ the clients' mean and s frozen steps before,

    r = (m − 1 + q·cos²θ)/m,  q = (1 − g·η·(∂f/∂n)²)^s,  under gradient flow e^(−s·g·η·(∂f/∂n)²)

where ∂f/∂n is v (multiplicative) or 1 (additive). If v never trains, r = (m − 1 + q)/m holds exactly and
everywhere, with s all K steps; the limit of many steps is (m − 1)/m.

The papers print, for two clients and m alike, r = (1 + (1 − η·v²)·cos²θ)/2 with one frozen step, which has
g = 1 where their loss has 2; and ½ where v never trains. (It is an upper bound with cos²θ·(1 + α) in place of
cos²θ, α the unknown error of straight trajectories; here α = 0.) The power s of more frozen steps is ours.
"""

import torch
from torch import Tensor

from kedge.measure.theory.linear import Network, Point, Training, product_minimum


def cosine(network: Network, point: Point) -> Tensor:
    """The clients' mean cos²θ_j; NaN where nothing would move."""
    of_n, of_v = network.slopes(point.n, shared(point))
    return (of_v.square() / (of_n.square() + of_v.square())).mean(-1)


def shared(point: Point) -> Tensor:
    """The v of every client."""
    return point.v[..., None].expand_as(point.n)


def remaining(network: Network, point: Point, training: Training) -> Tensor:
    """q: the share of n_j − n_k that the steps with v frozen leave."""
    slope = network.slopes(point.n, shared(point))[0][..., 0]  # the same for every client
    rate = training.gradient * training.lr * slope.square()
    if training.flow:
        return torch.exp(torch.where(rate == 0, 0.0, -rate * training.frozen))
    return (1 - rate) ** min(training.frozen, training.steps)


def theoretical(network: Network, point: Point, training: Training) -> Tensor:
    """r = |m − 1 + q·cos²θ|/m, without cos²θ where v never trains; q < 0 where steps overshoot."""
    clients = point.n.shape[-1]
    left = remaining(network, point, training)
    return (clients - 1 + (left * cosine(network, point) if training.thaws else left)).abs() / clients


def printed(network: Network, point: Point, training: Training) -> Tensor:
    """r as the papers print it, m or not: (1 + (1 − η·v²)^s·cos²θ)/2, and ½ if v never trains."""
    if not training.thaws:
        return torch.full_like(point.v, 0.5)
    left = (1 - training.lr * point.v.square()) ** training.frozen
    return (1 + left * cosine(network, point)) / 2


def printed_minimum(n: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    """Where two-layer gradient flow ends as the paper prints it: with ½ too much in both, so that n·v = ¼."""
    of_n, of_v = product_minimum(n, v)
    return of_n / 2, of_v / 2
