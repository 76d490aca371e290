"""Dirichlet(α·1) from keyed random numbers: G_j ~ Gamma(α) independent, p = G / ΣG, in logarithms.

Gamma(α+1) by Marsaglia and Tsang (2000): d = α + 2/3, c = 1/√(9d), x normal, v = (1 + c·x)³, accept d·v when
log u < x²/2 + d·(1 − v + log v); then the boost G(α) = G(α+1)·u^(1/α). For α = 0.01 this often
underflows, but its logarithm does not, and a softmax of logarithms never divides 0 by 0.

The streams of a numpy Generator may change between versions; a partition must not, so none is used.
"""

import math

import numpy as np
from numpy.typing import NDArray

from kedge.core.random import Integers, Purpose, normals, uniforms

LEAST_ALPHA = 1e-100  # below it log(u)/α overflows; one entry has all the mass long before


def log_gammas(
    alpha: float, count: int, size: int, seed: int, *, round: Integers = 0, purpose: int = Purpose.PARTITION
) -> NDArray[np.float64]:
    """Logarithms of Gamma(alpha) draws, [..., count, size]; the leading axes are those of `round`."""
    d = alpha + 2 / 3
    c = 1 / math.sqrt(9 * d)
    shape = (*np.shape(round), count, size)
    rounds = np.broadcast_to(np.asarray(round)[..., None, None], shape).ravel()
    rows = np.broadcast_to(np.arange(count)[:, None], shape).ravel()
    positions = np.broadcast_to(3 * np.arange(size), shape).ravel()  # three draws per entry: x, u, boost

    log_v = np.zeros(rows.size)
    pending = np.arange(rows.size)
    attempt = 0
    while pending.size:  # each attempt accepts at least 95 % for every alpha
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
