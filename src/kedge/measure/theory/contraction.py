"""Theory of the linear model: the ratio by which one round contracts the clients' discrepancy.

θ_j is the angle between client j's local update, along (∂f/∂n_j, ∂f/∂v), and the axis of v:

    cos²θ_j = (∂f/∂v)² / ((∂f/∂n_j)² + (∂f/∂v)²);  n_j²/(n_j² + v²) multiplicative, ½ additive

Near the minimum, if clients train to convergence after s steps with v frozen, with cos²θ the clients' mean,

    r = (m − 1 + q·cos²θ)/m,  q = (1 − g·η·(∂f/∂n)²)^s,  with gradient flow q = e^(−s·g·η·(∂f/∂n)²)

where ∂f/∂n is v (multiplicative) or 1 (additive). If v never trains, r = (m − 1 + q)/m is exact at every
point, with s = K, the number of local steps; its limit for many steps is (m − 1)/m.

The papers print r = (1 + (1 − η·v²)·cos²θ)/2 for one frozen step, both for two clients and for m, and ½ if v
never trains. That formula uses g = 1, although the gradient of their loss has g = 2. (In the papers it is an
upper bound with cos²θ·(1 + α), where α is the unknown error of assuming straight trajectories; here α = 0.)
The power s for several frozen steps is our extension.
"""

import torch
from torch import Tensor

from kedge.measure.theory.linear import Network, Point, Training, product_minimum


def mean_cosine(network: Network, point: Point) -> Tensor:
    """The clients' mean cos²θ_j; NaN if both derivatives are zero."""
    slope_n, slope_v = network.slopes(point.n, v_per_client(point))
    return (slope_v.square() / (slope_n.square() + slope_v.square())).mean(-1)


def v_per_client(point: Point) -> Tensor:
    """v broadcast to all clients, [..., clients]."""
    return point.v[..., None].expand_as(point.n)


def remaining_fraction(network: Network, point: Point, training: Training) -> Tensor:
    """q: the fraction of n_j − n_k that remains after the steps with v frozen."""
    slope = network.slopes(point.n, v_per_client(point))[0][..., 0]  # the same for every client
    rate = training.gradient * training.lr * slope.square()
    if training.flow:
        return torch.exp(torch.where(rate == 0, 0.0, -rate * training.frozen))
    return (1 - rate) ** min(training.frozen, training.steps)


def predicted_ratio(network: Network, point: Point, training: Training) -> Tensor:
    """r = |m − 1 + q·cos²θ|/m, without cos²θ if v never trains; q < 0 if steps overshoot."""
    clients = point.n.shape[-1]
    q = remaining_fraction(network, point, training)
    return (clients - 1 + (q * mean_cosine(network, point) if training.thaws else q)).abs() / clients


def paper_ratio(network: Network, point: Point, training: Training) -> Tensor:
    """r as printed in the papers for any m: (1 + (1 − η·v²)^s·cos²θ)/2, and ½ if v never trains."""
    if not training.thaws:
        return torch.full_like(point.v, 0.5)
    q = (1 - training.lr * point.v.square()) ** training.frozen
    return (1 + q * mean_cosine(network, point)) / 2


def paper_minimum(n: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    """The limit of two-layer gradient flow as printed in the paper: an extra factor ½ in both, so n·v = ¼."""
    limit_n, limit_v = product_minimum(n, v)
    return limit_n / 2, limit_v / 2
