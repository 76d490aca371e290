"""FedBug's linear model (Kao et al., 2023, section 4 and appendix B): m clients, m + 1 parameters.

Client j has one sample, x_j the j-th unit vector and y_j = 1, and minimizes (f_j − 1)². It trains its own n_j
and v, which all clients share:

    multiplicative   f_j = n_j · v    two layers; the paper writes n = (a, b) for two clients
    additive         f_j = n_j + v    one layer and a bias, as in the appendix on m clients

In a round, client j takes local steps on (n_j, v) along −g·(f_j − 1)·(∂f/∂n_j, ∂f/∂v), with v frozen in the
first s steps: s = 0 is FedAvg, s > 0 FedBug, s = ∞ FedBABU. The server averages whole models; client j
changed only n_j and v: n_j ← ((m − 1) n_j + n_j*)/m, v ← mean of v*. The true gradient of (f − 1)² has g = 2;
the paper prints g = 1.

Gradient flow is the limit of small steps. It runs for time g·η·s with v frozen, then to convergence. While
both train, n² − v² (multiplicative) or n − v (additive) is conserved; with c that number, the limit is

    multiplicative   n* = √((√(c² + 4) + c)/2),  v* = √((√(c² + 4) − c)/2),  both with the sign of n + v
    additive         n* = (1 + c)/2,  v* = (1 − c)/2

The paper prints n* and v* with another factor ½ (`contraction.paper_minimum`), so n*v* = ¼.
Seeds are stacked; everything is float64.
"""

import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from kedge.core.random import Purpose, uniforms

LEAST = 1e-12  # ratios of smaller discrepancies are rounding
NEVER = math.inf  # as a number of frozen steps: v never trains


class Point(NamedTuple):
    """The server's parameters for every seed."""

    n: Tensor  # [..., clients]
    v: Tensor  # [...]


class Network(NamedTuple):
    """The model that clients fit to 1, as functions of n and v of equal shape."""

    name: str
    output: Callable[[Tensor, Tensor], Tensor]
    slopes: Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]  # ∂f/∂n, ∂f/∂v
    minimum: Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]  # limit of gradient flow


class Training(NamedTuple):
    """Local training of a client."""

    lr: float = 0.1
    steps: int = 50
    frozen: float = 0  # steps; NEVER: v never trains
    gradient: float = 2.0  # g
    flow: bool = False

    @property
    def thaws(self) -> bool:
        """Whether v trains at all."""
        return self.frozen < (NEVER if self.flow else self.steps)


def product_minimum(n: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    """The minimum n·v = 1 with the same n² − v²; from n = −v the flow ends at the saddle 0."""
    half_c, sign = (n.square() - v.square()) / 2, torch.sign(n + v)
    root = torch.sqrt(half_c.square() + 1)
    # The smaller of n* and v* is 1 / the larger: the difference under its root would suffer cancellation.
    larger = torch.sqrt(root + half_c.abs())
    n_limit = torch.where(half_c >= 0, larger, 1 / larger)
    v_limit = torch.where(half_c >= 0, 1 / larger, larger)
    return sign * n_limit, sign * v_limit


MULTIPLICATIVE = Network(
    "multiplicative", output=lambda n, v: n * v, slopes=lambda n, v: (v, n), minimum=product_minimum
)
ADDITIVE = Network(
    "additive",
    output=lambda n, v: n + v,
    slopes=lambda n, v: (torch.ones_like(n), torch.ones_like(v)),
    minimum=lambda n, v: ((1 + n - v) / 2, (1 - n + v) / 2),
)
NETWORKS = {network.name: network for network in (MULTIPLICATIVE, ADDITIVE)}


def random_start(seeds: int, clients: int) -> Point:
    """n and v uniform in [0, 2], as in the paper, for seeds 0, 1, …"""
    every_seed = np.arange(seeds)
    n = uniforms(every_seed[:, None], Purpose.LINEAR, client=np.arange(clients))
    v = uniforms(every_seed, Purpose.LINEAR, position=1)
    return Point(torch.from_numpy(2 * n), torch.from_numpy(2 * v))


def gradient_descent(network: Network, start: Point, training: Training) -> tuple[Tensor, Tensor]:
    """Every client's n_j and v after its local gradient steps."""
    n, v = start.n, start.v[..., None].expand_as(start.n)
    for step in range(training.steps):
        factor = training.gradient * training.lr * (network.output(n, v) - 1)
        slope_n, slope_v = network.slopes(n, v)
        n, v = n - factor * slope_n, v if step < training.frozen else v - factor * slope_v
    return n, v


def gradient_flow(network: Network, start: Point, training: Training) -> tuple[Tensor, Tensor]:
    """Every client's n_j and v in the limit of gradient flow; `steps` is not used."""
    v = start.v[..., None].expand_as(start.n)
    n = flow_with_frozen_v(network, start.n, v, training.gradient * training.lr * training.frozen)
    return network.minimum(n, v) if training.thaws else (n, v)


def flow_with_frozen_v(network: Network, n: Tensor, v: Tensor, time: float) -> Tensor:
    """n after gradient flow for `time` with v frozen: f − 1 decays as e^(−t·(∂f/∂n)²)."""
    slope, _ = network.slopes(n, v)
    if time == 0:
        return n
    moving = slope != 0
    slope = torch.where(moving, slope, 1.0)
    return torch.where(moving, n + (network.output(n, v) - 1) * torch.expm1(-time * slope**2) / slope, n)


def server_average(start: Point, n: Tensor, v: Tensor) -> Point:
    """The mean of the clients' models; client j returns all n except n_j unchanged."""
    clients = n.shape[-1]
    return Point(((clients - 1) * start.n + n) / clients, v.mean(-1))


def next_round(network: Network, start: Point, training: Training) -> Point:
    """The server's parameters after one round."""
    trained = gradient_flow if training.flow else gradient_descent
    return server_average(start, *trained(network, start, training))


def trajectory(network: Network, start: Point, training: Training, rounds: int) -> Point:
    """The server's parameters before each round and after the last, [rounds + 1, ...]."""
    points = [start]
    for _ in range(rounds):
        points.append(next_round(network, points[-1], training))
    return Point(torch.stack([point.n for point in points]), torch.stack([point.v for point in points]))


def discrepancy(n: Tensor) -> Tensor:
    """d = |a − b| for two clients (definition 1), Σ |n_j − n_k| over ordered pairs for more (R.1)."""
    clients = n.shape[-1]
    gaps = n.sort(-1).values.diff(dim=-1)
    below = torch.arange(1, clients, dtype=n.dtype, device=n.device)
    pairs = (gaps * below * (clients - below)).sum(-1)  # each gap counts in k·(m − k) pairs
    return pairs if clients == 2 else 2 * pairs


def loss(network: Network, point: Point) -> Tensor:
    """The clients' mean (f_j − 1)² at the server's parameters."""
    return (network.output(point.n, point.v[..., None].expand_as(point.n)) - 1).square().mean(-1)


def ratios(d: Tensor) -> Tensor:
    """r = next d / d, [rounds, seeds]; NaN from the first round in which d is below 1e-12 or not finite."""
    usable = torch.isfinite(d[1:]) & torch.isfinite(d[:-1]) & (d[:-1] >= LEAST)
    compared = usable.to(torch.int64).cumprod(0).bool()
    return torch.where(compared, d[1:] / d[:-1], torch.nan)
