"""Label heterogeneity of a partition in one number: 0 for a random one, 1 if every client has one class.

Client i has n_ic samples of class c, n_i in all; q_c is the fraction of class c among all samples. The
distance

    d_i = ½ Σ_c |n_ic / n_i − q_c|

(total variation) is the fraction of the client's samples that would need another class to match the overall
distribution. `distance` is the mean of d_i weighted by n_i. Two partitions of the same samples give its
scale:

    chance = the expected distance if clients of these sizes get random samples;
    most   = 1 − Σ_c q_c², the distance if every client has one class: the maximum, as d is convex.

    value  = (distance − chance) / (most − chance)

Small clients differ by chance alone: `distance` includes this effect, `value` removes it. `value` is negative
for partitions more even than chance (stratified partitions). Only labels count.

In a random partition n_ic is hypergeometric. With N samples, K of the class, n for the client, μ = nK/N and v
the least integer above μ, the terms (x − μ)·P(x) telescope (De Moivre; Diaconis and Zabell, 1991), so

    E|n_ic − μ| = 2·v·(N − K − n + v)·P(v) / N.
"""

from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from kedge.core.errors import RequestError

Counts = NDArray[np.int64]
Floats = NDArray[np.float64]
LEAST = 1e-9  # a smaller most − chance is rounding: all partitions with these sizes are alike


class Heterogeneity(NamedTuple):
    """The heterogeneity `value` and the three terms of its formula."""

    value: float
    distance: float
    chance: float
    most: float


def heterogeneity(counts: Counts) -> Heterogeneity:
    """Heterogeneity of sample counts, [clients, classes]; 0 if all partitions with these sizes are alike."""
    if counts.ndim != 2 or counts.dtype.kind not in "iu" or (counts < 0).any() or not counts.sum():
        raise RequestError(
            f"heterogeneity: counts are {counts.dtype} of shape {counts.shape} with sum {counts.sum()}; need "
            "whole numbers ≥ 0 of shape [clients, classes], and at least one sample."
        )
    sizes, totals = counts.sum(axis=1), counts.sum(axis=0)
    distance = float(distances(counts) @ sizes / sizes.sum())
    most = float(1 - np.square(totals / totals.sum()).sum())
    chance = chance_distance(sizes, totals)
    scale = most - chance
    return Heterogeneity((distance - chance) / scale if scale > LEAST else 0.0, distance, chance, most)


def distances(counts: Counts) -> Floats:
    """Each client's distance d_i from the overall class distribution; 0 for a client without samples."""
    sizes, totals = counts.sum(axis=1, keepdims=True), counts.sum(axis=0)
    distance: Floats = np.abs(counts / np.maximum(sizes, 1) - totals / totals.sum()).sum(axis=1) / 2
    return np.where(sizes[:, 0] > 0, distance, 0.0)


def chance_distance(sizes: Counts, totals: Counts) -> float:
    """The expected distance if clients of `sizes` samples get random samples of classes with `totals`."""
    samples = int(totals.sum())
    n, clients = np.unique(sizes, return_counts=True)
    n, k = n[:, None], totals[None, :]
    v = n * k // samples + 1
    possible = v <= np.minimum(n, k)  # elsewhere the count always equals its mean
    n, k, v = (np.broadcast_to(array, possible.shape)[possible] for array in (n, k, v))
    log = torch.lgamma(torch.arange(1, samples + 2, dtype=torch.float64)).numpy()  # log[j] = log j!
    log_ways = log[k] - log[v] - log[k - v] + log[samples - k] - log[n - v] - log[samples - k - n + v]
    probability = np.exp(log_ways - log[samples] + log[n] + log[samples - n])  # P(v)
    deviation = np.zeros(possible.shape)
    deviation[possible] = 2 * v * (samples - k - n + v) * probability / samples
    return float(clients @ deviation.sum(axis=1) / 2 / samples)
