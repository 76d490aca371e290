"""The interaction tensor (Jiang et al., 2024): which features models have learned, and share.

Of model m take the features Φ (samples × d) that enter its classifier, in evaluation mode. Thin SVD Φ = UΣVᵀ,
not centred unless asked for; the scores v = Φ·V[:, :K] are K columns, one a feature of the model. Columns of
all models are compared by |ρ|, their correlation over the samples. Greedy clusters: in the order of models,
and of singular values within one, a column that is in no cluster opens one and takes every later free column
with |ρ| > γ_corr. Ω[m, n, f] = 1 if a column of model m in cluster f has sample n strictly above γ_data;
columns are divided by their largest absolute value, and γ_data is a quantile of all absolute entries.

Two models share as many features as cluster labels occur among both models' columns. A column that is
constant over the samples, up to the rounding of the features, is no feature: it is in no cluster.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from kedge.core.errors import RequestError

NONE = -1  # the label of a column that is no feature
ROUNDING = 100  # times the features' epsilon: spread below this share of the largest singular value is none


@dataclass(frozen=True)
class Clusters:
    """What counts as a feature, and which are the same."""

    components: int = 20  # K
    correlation: float = 0.5  # γ_corr
    quantile: float = 0.9  # γ_data, as a quantile
    centered: bool = False

    def __post_init__(self) -> None:
        if self.components < 1:
            raise RequestError(f"components = {self.components}: need a whole number of at least 1.")
        for name in ("correlation", "quantile"):
            if not 0 <= getattr(self, name) < 1:
                raise RequestError(f"{name} = {getattr(self, name)}: need 0 ≤ {name} < 1.")


class Interaction(NamedTuple):
    """The columns of all models, compared."""

    correlation: Tensor  # |ρ|, [M·K, M·K]; 0 in rows and columns that are no features
    labels: Tensor  # [M, K]: the cluster of each column, NONE where it is no feature
    entries: Tensor  # [M·K, samples]: |v| / max |v|
    settings: Clusters

    @property
    def above(self) -> float | None:
        """γ_data; None where no model has a feature."""
        real = self.labels.flatten() != NONE
        return float(np.quantile(self.entries[real].numpy(), self.settings.quantile)) if real.any() else None

    @property
    def clusters(self) -> int:
        """How many greedy clusters."""
        return int(self.labels.max()) + 1

    @property
    def components(self) -> int:
        """How many connected components of |ρ| > γ_corr: the other reading; never more than clusters."""
        linked = (self.correlation > self.settings.correlation).fill_diagonal_(True)
        free = self.labels.flatten() != NONE
        count = 0
        while free.any():
            reached = torch.zeros_like(free)
            reached[free.nonzero()[0]] = True
            grown = linked[reached].any(0) & free
            while (grown & ~reached).any():
                reached = grown
                grown = linked[reached].any(0) & free
            free &= ~reached
            count += 1
        return count

    @property
    def frequency(self) -> Tensor:
        """Of each cluster: in how many models it occurs."""
        return self.members.sum(0)

    @property
    def members(self) -> Tensor:
        """[M, F]: which models have a column in which cluster."""
        return (self.labels[:, :, None] == torch.arange(self.clusters)).any(1)

    def shared(self, left: int, right: int) -> int:
        """How many clusters two models have in common."""
        return int((self.members[left] & self.members[right]).sum())

    def first(self, models: int) -> "Interaction":
        """Of the first models alone: greedy clusters do not depend on the models after them."""
        columns = models * self.labels.shape[1]
        return self._replace(
            correlation=self.correlation[:columns, :columns],
            labels=self.labels[:models],
            entries=self.entries[:columns],
        )

    def tensor(self) -> Tensor:
        """Ω, [M, samples, F]: 1 where a sample has a feature of that cluster, as that model sees it."""
        models, components = self.labels.shape
        there = torch.zeros(models, self.entries.shape[1], self.clusters, dtype=torch.bool)
        above = self.above
        if above is None:
            return there
        high = (self.entries > above).view(models, components, -1)
        for m in range(models):
            for k, label in enumerate(self.labels[m].tolist()):
                if label != NONE:
                    there[m, :, label] |= high[m, k]
        return there


def interaction(features: Sequence[Tensor], clusters: Clusters = Clusters()) -> Interaction:  # noqa: B008
    """The interaction of models with these features, [samples, d] each, over the same samples."""
    check(features)
    most = min(clusters.components, *(f.shape[1] for f in features), len(features[0]))
    columns = [scores(f, most, clusters.centered) for f in features]
    v = torch.cat([c.score for c in columns])  # [M·K, samples]
    real = torch.cat([c.real for c in columns])
    away = v - v.mean(1, keepdim=True)
    away = torch.where(real[:, None], away, 0.0)
    unit = away / torch.where(real, away.norm(dim=1), 1.0)[:, None]
    rho = (unit @ unit.T).abs()
    labels = greedy(rho, real, clusters.correlation)
    largest = v.abs().amax(1)
    entries = torch.where(real[:, None], v.abs() / torch.where(real, largest, 1.0)[:, None], 0.0)
    return Interaction(rho, labels.view(len(features), most), entries, clusters)


class Columns(NamedTuple):
    """A model's features: one row a component, by decreasing singular value."""

    score: Tensor  # [K, samples]
    real: Tensor  # [K], whether it is a feature: not constant


def scores(features: Tensor, components: int, centered: bool = False) -> Columns:
    """Φ·V[:, :K] in double precision."""
    phi = features.double()
    if centered:
        phi = phi - phi.mean(0)
    _, sigma, vt = torch.linalg.svd(phi, full_matrices=False)
    score = vt[:components] @ phi.T
    spread = (score - score.mean(1, keepdim=True)).norm(dim=1)
    return Columns(score, spread > ROUNDING * torch.finfo(features.dtype).eps * sigma[0])


def greedy(rho: Tensor, real: Tensor, threshold: float) -> Tensor:
    """A label for every column: the first free one opens a cluster and takes later ones that resemble it."""
    alike = (rho > threshold).numpy()
    labels = np.full(len(rho), NONE)
    free = real.numpy().copy()
    count = 0
    for column in range(len(rho)):
        if free[column]:
            taken = alike[column] & free
            taken[column] = True
            labels[taken] = count
            free &= ~taken
            count += 1
    return torch.from_numpy(labels)


def check(features: Sequence[Tensor]) -> None:
    """Raise where models and samples do not fit together."""
    shapes = [tuple(f.shape) for f in features]
    if not features or any(len(s) != 2 or not s[0] or not s[1] or s[0] != shapes[0][0] for s in shapes):
        raise RequestError(
            f"interaction: features of shapes {shapes}; need [samples, d] of at least one model, at least "
            "one sample, and the same samples for all."
        )
    bad = [number for number, f in enumerate(features) if not f.isfinite().all()]
    if bad:
        raise RequestError(f"interaction: the features of model {bad} are not finite.")
