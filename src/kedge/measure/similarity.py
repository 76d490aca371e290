"""Linear CKA (Kornblith et al., 2019): similarity of two models' features on the same samples, from 0 to 1.

For centered X, Y (samples × d): ⟨XXᵀ, YYᵀ⟩ / (‖XXᵀ‖ ‖YYᵀ‖) in the Frobenius inner product. Rotations and
uniform scaling do not change it. With fewer samples than features it is biased towards 1, so compare only
values with the same number of samples. If features are constant over the samples, the result is None.
"""

from collections.abc import Iterable, Sequence
from itertools import combinations

import torch
from torch import Tensor

ROUNDING = 100  # times the features' epsilon: features that vary less between samples count as constant


def linear_cka(x: Tensor, y: Tensor) -> float | None:
    """Linear CKA of two feature matrices, [samples, d] each; d may differ."""
    return cka(gram(x), gram(y))


def gram(features: Tensor) -> Tensor:
    """XXᵀ of the centered features in double precision, [samples, samples]; 0 if they are constant."""
    flat = features.flatten(1)
    centered = flat - flat.mean(0)
    if centered.norm() <= ROUNDING * torch.finfo(flat.dtype).eps * flat.norm():
        return torch.zeros(len(flat), len(flat), dtype=torch.float64)
    return (centered @ centered.T).double().cpu()


def cka(left: Tensor, right: Tensor) -> float | None:
    """⟨K, L⟩ / (‖K‖ ‖L‖); None if either is 0."""
    lengths = left.norm() * right.norm()
    return float((left * right).sum() / lengths) if lengths > 0 else None


def mean_cka(grams: Sequence[Tensor]) -> float | None:
    """The mean CKA over all pairs that have a value, or None."""
    return mean_or_none(cka(left, right) for left, right in combinations(grams, 2))


def mean_or_none(values: Iterable[float | None]) -> float | None:
    """The mean of the values that are not None, or None."""
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None
