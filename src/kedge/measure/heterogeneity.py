"""How much clients' classes differ, in one number: 0 as in a random deal, 1 if every client held one class.

Client i holds n_ic samples of class c, n_i in all; q_c is the class's share among all samples. Its distance

    d_i = ½ Σ_c |n_ic / n_i − q_c|

(total variation) is the share of its samples that would have to be of other classes for it to look like the
whole. The clients' mean, weighted by n_i, is `distance`. Two deals of the same samples put it on a scale:

    chance = its expectation when clients of these sizes get their samples at random;
    most   = 1 − Σ_c q_c², where every client holds one class. No deal has more: d is convex in n_i· / n_i.

    value  = (distance − chance) / (most − chance)

Small clients look different by chance alone, which `distance` does not tell from skew and `value` does. It is
negative for deals more even than chance (stratified ones). It is about labels only.

In a random deal n_ic is hypergeometric. With N samples, K of the class, n for the client, μ = nK/N and v the
least integer above μ, the terms (x − μ)·P(x) telescope (De Moivre; Diaconis and Zabell, 1991), so

    E|n_ic − μ| = 2·v·(N − K − n + v)·P(v) / N.
"""

from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from kedge.core.errors import RequestError

Counts = NDArray[np.int64]
Floats = NDArray[np.float64]
LEAST = 1e-9  # most − chance below this is rounding: no deal of these sizes differs from another


class Heterogeneity(NamedTuple):
    """The number, and what it is made of."""

    value: float
    distance: float
    chance: float
    most: float


def heterogeneity(counts: Counts) -> Heterogeneity:
    """Of samples per client and class, [clients, classes]; 0 where all deals of these sizes are alike."""
    if counts.ndim != 2 or counts.dtype.kind not in "iu" or (counts < 0).any() or not counts.sum():
        raise RequestError(
            f"heterogeneity: counts are {counts.dtype} of shape {counts.shape} with sum {counts.sum()}; need "
            "whole numbers ≥ 0 of shape [clients, classes], and at least one sample."
        )
    sizes, totals = counts.sum(axis=1), counts.sum(axis=0)
    distance = float(distances(counts) @ sizes / sizes.sum())
    most = float(1 - np.square(totals / totals.sum()).sum())
    chance = by_chance(sizes, totals)
    room = most - chance
    return Heterogeneity((distance - chance) / room if room > LEAST else 0.0, distance, chance, most)


def distances(counts: Counts) -> Floats:
    """Each client's distance d_i from the whole; 0 for a client without samples."""
    sizes, totals = counts.sum(axis=1, keepdims=True), counts.sum(axis=0)
    apart: Floats = np.abs(counts / np.maximum(sizes, 1) - totals / totals.sum()).sum(axis=1) / 2
    return np.where(sizes[:, 0] > 0, apart, 0.0)


def by_chance(sizes: Counts, totals: Counts) -> float:
    """The expected distance when clients of these sizes get samples of these classes at random."""
    samples = int(totals.sum())
    n, clients = np.unique(sizes, return_counts=True)
    n, k = n[:, None], totals[None, :]
    v = n * k // samples + 1
    there = v <= np.minimum(n, k)  # beyond, a class deviates from its mean by nothing
    n, k, v = (np.broadcast_to(array, there.shape)[there] for array in (n, k, v))
    log = torch.lgamma(torch.arange(1, samples + 2, dtype=torch.float64)).numpy()  # log[j] = log j!
    ways = log[k] - log[v] - log[k - v] + log[samples - k] - log[n - v] - log[samples - k - n + v]
    chance = np.exp(ways - log[samples] + log[n] + log[samples - n])
    deviation = np.zeros(there.shape)
    deviation[there] = 2 * v * (samples - k - n + v) * chance / samples
    return float(clients @ deviation.sum(axis=1) / 2 / samples)
