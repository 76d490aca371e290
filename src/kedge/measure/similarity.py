"""Linear CKA (Kornblith et al., 2019): how alike two models' features of the same samples are, from 0 to 1.

With X, Y (samples × d, centred): ⟨XXᵀ, YYᵀ⟩ / (‖XXᵀ‖ ‖YYᵀ‖) in the Frobenius product. Rotations and one scale
for all features change nothing. It leans towards 1 where there are fewer samples than features, so compare
values of equal sizes only. Features that are constant over the samples have no similarity: None.
"""

from collections.abc import Iterable, Sequence
from itertools import combinations

import torch
from torch import Tensor

ROUNDING = 100  # times the features' epsilon: what differs less between samples is constant


def linear_cka(x: Tensor, y: Tensor) -> float | None:
    """The similarity of two sets of features, [samples, d] each; d may differ."""
    return cka(gram(x), gram(y))


def gram(features: Tensor) -> Tensor:
    """XXᵀ of the centred features in double precision, [samples, samples]; 0 where they are constant."""
    flat = features.flatten(1)
    away = flat - flat.mean(0)
    if away.norm() <= ROUNDING * torch.finfo(flat.dtype).eps * flat.norm():
        return torch.zeros(len(flat), len(flat), dtype=torch.float64)
    return (away @ away.T).double().cpu()


def cka(left: Tensor, right: Tensor) -> float | None:
    """⟨K, L⟩ / (‖K‖ ‖L‖); None where one is 0."""
    lengths = left.norm() * right.norm()
    return float((left * right).sum() / lengths) if lengths > 0 else None


def mean_cka(grams: Sequence[Tensor]) -> float | None:
    """The mean over the pairs that have a value; None where no pair has."""
    return average(cka(left, right) for left, right in combinations(grams, 2))


def average(values: Iterable[float | None]) -> float | None:
    """The mean of what is there; None where nothing is."""
    there = [one for one in values if one is not None]
    return sum(there) / len(there) if there else None
