"""Client drift: gradient diversity and cosine similarity of clients' updates or other vectors.

Gradient diversity (Yin et al., 2018) of v_1 … v_n is Σ_k ‖v_k‖² / ‖Σ_k v_k‖². It is 1/n for equal vectors, 1
if they are orthogonal, infinite if their sum is zero, undefined if all are zero. For updates Δ_k = w_k − θ
it is called pseudo-gradient diversity, for FedDyn's g_k or SCAFFOLD's c_k local-drift diversity. Multiplying
all v_k by the same number does not change it.

Two cosines are measured: cos(Δ_k^T, Δ_k^t), t < T, compares one client's updates across rounds; the mean of
cos(v_j, v_k) over pairs compares clients. Zero vectors have no direction and are left out.

Diversity and the mean cosine follow from averages over clients, so an engine need not expose single clients.
With s = mean ‖v_k‖², a = ‖mean v_k‖², b = ‖mean v_k/‖v_k‖‖², and q the fraction of nonzero vectors,

    diversity = s / (n·a)        mean cosine = (n·b − q) / (q·(n·q − 1)).
"""

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from kedge.core.tree import Leaves, add, dot, scale, sqnorm


def gradient_diversity(vectors: Sequence[Leaves]) -> float | None:
    """Σ‖v‖² / ‖Σv‖²: infinite if the sum is zero, None if all vectors are zero or `vectors` is empty."""
    if not vectors:
        return None
    squares = torch.stack([sqnorm(v) for v in vectors]).double().mean()
    return number_or_none(diversity(squares, sqnorm(mean_vector(vectors)).double(), len(vectors)))


def client_cosine(vectors: Sequence[Leaves]) -> float | None:
    """The mean of cos(v_j, v_k) over pairs of nonzero vectors; None for fewer than two."""
    units = [scale(1 / sqnorm(v).sqrt(), v) for v in vectors if sqnorm(v) > 0]
    if len(units) < 2:
        return None
    fraction = torch.ones((), dtype=torch.float64)
    return number_or_none(mean_pairwise_cosine(sqnorm(mean_vector(units)).double(), fraction, len(units)))


def cosine(left: Leaves, right: Leaves) -> float | None:
    """⟨left, right⟩ / (‖left‖ ‖right‖); None if either is zero."""
    lengths = (sqnorm(left) * sqnorm(right)).sqrt()
    return float(dot(left, right) / lengths) if lengths > 0 else None


def intra_client_cosine(updates: Sequence[Leaves]) -> list[float | None]:
    """Cosine of one client's last update with each earlier one: cos(Δ^T, Δ^t) for t = 0 … T−1."""
    *before, last = updates
    return [cosine(last, update) for update in before]


def mean_over_clients(values: Sequence[Sequence[float | None]]) -> list[float | None]:
    """The mean in each round over the clients that have a value, or None; `values` is [clients][rounds]."""
    rounds = [[value for value in column if value is not None] for column in zip(*values, strict=True)]
    return [sum(column) / len(column) if column else None for column in rounds]


def diversity(mean_square: Tensor, square_of_mean: Tensor, count: Tensor | int) -> Tensor:
    """s / (n·a): infinite if the sum of the vectors is zero, NaN if all are zero."""
    return mean_square / (count * square_of_mean)


def mean_pairwise_cosine(square_of_mean: Tensor, nonzero: Tensor, count: Tensor | int) -> Tensor:
    """(n·b − q) / (q·(n·q − 1)) for b = `square_of_mean`, q = `nonzero`; NaN without a pair."""
    pairs = nonzero * (count * nonzero - 1)
    return torch.where(pairs > 0, (count * square_of_mean - nonzero) / pairs, math.nan)


def mean_vector(vectors: Sequence[Leaves]) -> Leaves:
    """The unweighted mean."""
    total = vectors[0]
    for v in vectors[1:]:
        total = add(total, v)
    return scale(1 / len(vectors), total)


def number_or_none(value: Tensor) -> float | None:
    """The value as a float, None for NaN."""
    number = float(value)
    return None if math.isnan(number) else number
