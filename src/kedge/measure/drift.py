"""How far clients pull apart: diversity and cosines of their updates, or of any vectors they have.

Diversity (Yin et al., 2018) of v_1 … v_n: Σ_k ‖v_k‖² / ‖Σ_k v_k‖². n equal vectors have 1/n, orthogonal ones
1; it is infinite where they cancel, and there is none where all are zero. Of updates Δ_k = w_k − θ it is the
pseudo-gradient diversity, of FedDyn's g_k or SCAFFOLD's c_k the local-drift diversity. Scale and sign of the
v_k do not matter, if they are the same for all.

Across rounds: cos(Δ_k^T, Δ_k^t) of one client, t < T. Between clients: the mean of cos(v_j, v_k) over pairs.
Zero vectors have no direction and are left out.

Both diversity and the mean cosine follow from means over the clients, so that no client need be seen alone:
with s = mean ‖v_k‖², a = ‖mean v_k‖², b = ‖mean v_k/‖v_k‖‖² and q the share of vectors that are not zero,

    diversity = s / (n·a)        mean cosine = (n·b − q) / (q·(n·q − 1)).
"""

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from kedge.core.tree import Leaves, add, dot, scale, sqnorm


def gradient_diversity(vectors: Sequence[Leaves]) -> float | None:
    """Σ‖v‖² / ‖Σv‖²: infinite where the vectors cancel, None where all are zero or there is none."""
    if not vectors:
        return None
    squares = torch.stack([sqnorm(v) for v in vectors]).double().mean()
    return value(diversity(squares, sqnorm(mean_of(vectors)).double(), len(vectors)))


def client_cosine(vectors: Sequence[Leaves]) -> float | None:
    """The mean of cos(v_j, v_k) over the pairs of vectors that are not zero; None for fewer than two."""
    units = [scale(1 / sqnorm(v).sqrt(), v) for v in vectors if sqnorm(v) > 0]
    if len(units) < 2:
        return None
    every = torch.ones((), dtype=torch.float64)
    return value(pairwise(sqnorm(mean_of(units)).double(), every, len(units)))


def cosine(left: Leaves, right: Leaves) -> float | None:
    """⟨left, right⟩ / (‖left‖ ‖right‖); None where one is zero."""
    lengths = (sqnorm(left) * sqnorm(right)).sqrt()
    return float(dot(left, right) / lengths) if lengths > 0 else None


def intra_client_cosine(updates: Sequence[Leaves]) -> list[float | None]:
    """One client's last update beside each one before: cos(Δ^T, Δ^t) for t = 0 … T−1."""
    *before, last = updates
    return [cosine(last, one) for one in before]


def over_clients(values: Sequence[Sequence[float | None]]) -> list[float | None]:
    """Round by round the mean over the clients that have a value; None where nobody has."""
    rounds = [[one for one in at if one is not None] for at in zip(*values, strict=True)]
    return [sum(at) / len(at) if at else None for at in rounds]


def diversity(square: Tensor, together: Tensor, count: Tensor | int) -> Tensor:
    """s / (n·a): infinite where the vectors cancel, NaN where all are zero."""
    return square / (count * together)


def pairwise(aligned: Tensor, there: Tensor, count: Tensor | int) -> Tensor:
    """(n·b − q) / (q·(n·q − 1)): the mean cosine of the pairs, NaN where there is no pair."""
    pairs = there * (count * there - 1)
    return torch.where(pairs > 0, (count * aligned - there) / pairs, math.nan)


def mean_of(vectors: Sequence[Leaves]) -> Leaves:
    """The plain mean."""
    total = vectors[0]
    for v in vectors[1:]:
        total = add(total, v)
    return scale(1 / len(vectors), total)


def value(number: Tensor) -> float | None:
    """A number, or None for none."""
    found = float(number)
    return None if math.isnan(found) else found
