"""Dirichlet(α·1) from keyed chance: G_j ~ Gamma(α) independent, p = G / ΣG, in logarithms throughout.

Gamma(α+1) by Marsaglia and Tsang (2000): d = α + 2/3, c = 1/√(9d), x normal, v = (1 + c·x)³, accept d·v when
log u < x²/2 + d·(1 − v + log v); then the boost G(α) = G(α+1)·u^(1/α). For α = 0.01 that is often below the
least float, but its logarithm is not, and a softmax of logarithms never meets 0/0.

No numpy Generator: its streams may change between versions, and a partition must not.
"""

import math

import numpy as np
from numpy.typing import NDArray

from kedge.core.random import Integers, Purpose, normals, uniforms

LEAST_ALPHA = 1e-100  # log(u)/α stays a float below it, and one entry takes everything long before


def log_gammas(
    alpha: float, count: int, size: int, seed: int, *, round: Integers = 0, purpose: int = Purpose.PARTITION
) -> NDArray[np.float64]:
    """Logarithms of Gamma(alpha) draws, [..., count, size]; the leading axes are those of `round`."""
    d = alpha + 2 / 3
    c = 1 / math.sqrt(9 * d)
    shape = (*np.shape(round), count, size)
    rounds = np.broadcast_to(np.asarray(round)[..., None, None], shape).ravel()
    rows = np.broadcast_to(np.arange(count)[:, None], shape).ravel()
    positions = np.broadcast_to(3 * np.arange(size), shape).ravel()  # three draws an entry: x, u, boost

    log_v = np.zeros(rows.size)
    pending = np.arange(rows.size)
    attempt = 0
    while pending.size:  # at least 95 % are accepted at once, whatever alpha is
        when, row, entry = rounds[pending], rows[pending], positions[pending]
        x = normals(seed, purpose, round=when, client=row, step=attempt, position=entry)
        u = uniforms(seed, purpose, round=when, client=row, step=attempt, position=entry + 1)
        root = 1 + c * x
        log_root = 3 * np.log(np.where(root > 0, root, 1.0))
        accepted = (root > 0) & (np.log(u) < x * x / 2 + d * (1 - root**3 + log_root))
        log_v[pending[accepted]] = log_root[accepted]
        pending = pending[~accepted]
        attempt += 1

    boost = np.log(uniforms(seed, purpose, round=rounds, client=rows, position=positions + 2))
    return (math.log(d) + log_v + boost / max(alpha, LEAST_ALPHA)).reshape(shape)


def dirichlet(
    alpha: float, count: int, size: int, seed: int, *, round: Integers = 0, purpose: int = Purpose.PARTITION
) -> NDArray[np.float64]:
    """Independent rows of Dirichlet(alpha·1), [..., count, size]; the leading axes are those of `round`."""
    logs = log_gammas(alpha, count, size, seed, round=round, purpose=purpose)
    weights = np.exp(logs - logs.max(axis=-1, keepdims=True))
    return np.asarray(weights / weights.sum(axis=-1, keepdims=True))
