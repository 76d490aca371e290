"""The interaction tensor (Jiang et al., 2024): the features that each model has learned and shares.

For model m, take the classifier's inputs Φ (samples × d) in evaluation mode and their thin SVD Φ = UΣVᵀ (not
centered by default). Each of the K columns of Φ·V[:, :K] is a feature of the model. Columns of all models are
compared by |ρ|, the absolute correlation over the samples. Clustering is greedy: columns are visited in the
order of models, then of singular values; a column without a cluster opens one and adds every later column
without a cluster and with |ρ| > γ_corr. Columns are divided by their largest absolute value. Ω[m, n, f] = 1
if a column of model m in cluster f has an absolute value above γ_data at sample n; γ_data is a quantile of
all absolute entries.

The number of features that two models share is the number of clusters with columns of both. A column that is
constant over the samples, up to rounding, is not a feature and belongs to no cluster.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, NamedTuple

import numpy as np
import torch
from pydantic import Field
from torch import Tensor

from kedge.core.errors import RequestError
from kedge.core.ranges import Count, checked

NO_CLUSTER = -1  # the label of a column that is not a feature
ROUNDING = 100  # times the features' epsilon: a smaller spread, relative to the largest singular value, is 0


Threshold = Annotated[float, Field(ge=0, lt=1)]


@checked(prefix="")
@dataclass(frozen=True)
class Clusters:
    """Thresholds that define features and clusters."""

    components: Count = 20  # K
    correlation: Threshold = 0.5  # γ_corr
    quantile: Threshold = 0.9  # γ_data, as a quantile
    centered: bool = False


class Interaction(NamedTuple):
    """Correlations, clusters and entries of the columns of all models."""

    correlation: Tensor  # |ρ|, [M·K, M·K]; 0 for columns that are not features
    labels: Tensor  # [M, K]: the cluster of each column, or NO_CLUSTER
    entries: Tensor  # [M·K, samples]: |v| / max |v|
    settings: Clusters

    @property
    def threshold(self) -> float | None:
        """γ_data, or None if no model has a feature."""
        real = self.labels.flatten() != NO_CLUSTER
        return float(np.quantile(self.entries[real].numpy(), self.settings.quantile)) if real.any() else None

    @property
    def clusters(self) -> int:
        """The number of greedy clusters."""
        return int(self.labels.max()) + 1

    @property
    def components(self) -> int:
        """The number of connected components of the graph |ρ| > γ_corr; it is at most `clusters`."""
        adjacent = (self.correlation > self.settings.correlation).fill_diagonal_(True)
        unvisited = self.labels.flatten() != NO_CLUSTER
        count = 0
        while unvisited.any():
            component = torch.zeros_like(unvisited)
            component[unvisited.nonzero()[0]] = True
            grown = adjacent[component].any(0) & unvisited
            while (grown & ~component).any():
                component = grown
                grown = adjacent[component].any(0) & unvisited
            unvisited &= ~component
            count += 1
        return count

    @property
    def frequency(self) -> Tensor:
        """The number of models in which each cluster occurs, [F]."""
        return self.members.sum(0)

    @property
    def members(self) -> Tensor:
        """Whether a model has a column in a cluster, [M, F]."""
        return (self.labels[:, :, None] == torch.arange(self.clusters)).any(1)

    def shared(self, left: int, right: int) -> int:
        """The number of clusters that two models have in common."""
        return int((self.members[left] & self.members[right]).sum())

    def first(self, models: int) -> "Interaction":
        """The interaction of the first `models` models: greedy clusters do not depend on later models."""
        columns = models * self.labels.shape[1]
        return self._replace(
            correlation=self.correlation[:columns, :columns],
            labels=self.labels[:models],
            entries=self.entries[:columns],
        )

    def tensor(self) -> Tensor:
        """Ω, [M, samples, F]: whether a model finds a feature of the cluster in the sample."""
        models, components = self.labels.shape
        present = torch.zeros(models, self.entries.shape[1], self.clusters, dtype=torch.bool)
        threshold = self.threshold
        if threshold is None:
            return present
        high = (self.entries > threshold).view(models, components, -1)
        for m in range(models):
            for k, label in enumerate(self.labels[m].tolist()):
                if label != NO_CLUSTER:
                    present[m, :, label] |= high[m, k]
        return present


def interaction(features: Sequence[Tensor], clusters: Clusters = Clusters()) -> Interaction:  # noqa: B008
    """The interaction of models, given the features of each on the same samples, [samples, d]."""
    check_features(features)
    count = min(clusters.components, *(f.shape[1] for f in features), len(features[0]))
    columns = [principal_columns(f, count, clusters.centered) for f in features]
    v = torch.cat([c.score for c in columns])  # [M·K, samples]
    real = torch.cat([c.real for c in columns])
    centered = v - v.mean(1, keepdim=True)
    centered = torch.where(real[:, None], centered, 0.0)
    normalized = centered / torch.where(real, centered.norm(dim=1), 1.0)[:, None]
    rho = (normalized @ normalized.T).abs()
    labels = greedy_labels(rho, real, clusters.correlation)
    largest = v.abs().amax(1)
    entries = torch.where(real[:, None], v.abs() / torch.where(real, largest, 1.0)[:, None], 0.0)
    return Interaction(rho, labels.view(len(features), count), entries, clusters)


class Columns(NamedTuple):
    """One model's features, the columns of Φ·V as rows, by decreasing singular value."""

    score: Tensor  # [K, samples]
    real: Tensor  # [K]: whether the component is a feature, that is, not constant


def principal_columns(features: Tensor, components: int, centered: bool = False) -> Columns:
    """The first `components` columns of Φ·V in double precision, as rows; Φ is `features`."""
    phi = features.double()
    if centered:
        phi = phi - phi.mean(0)
    _, sigma, vt = torch.linalg.svd(phi, full_matrices=False)
    score = vt[:components] @ phi.T
    spread = (score - score.mean(1, keepdim=True)).norm(dim=1)
    return Columns(score, spread > ROUNDING * torch.finfo(features.dtype).eps * sigma[0])


def greedy_labels(rho: Tensor, real: Tensor, threshold: float) -> Tensor:
    """Cluster labels: each column without a cluster opens one and adds later correlated columns."""
    correlated = (rho > threshold).numpy()
    labels = np.full(len(rho), NO_CLUSTER)
    unlabeled = real.numpy().copy()
    count = 0
    for column in range(len(rho)):
        if unlabeled[column]:
            members = correlated[column] & unlabeled
            members[column] = True
            labels[members] = count
            unlabeled &= ~members
            count += 1
    return torch.from_numpy(labels)


def check_features(features: Sequence[Tensor]) -> None:
    """Raise unless all features are finite and [samples, d] with the same number of samples."""
    shapes = [tuple(f.shape) for f in features]
    if not features or any(len(s) != 2 or not s[0] or not s[1] or s[0] != shapes[0][0] for s in shapes):
        raise RequestError(
            f"interaction: features of shapes {shapes}; need [samples, d] of at least one model, at least "
            "one sample, and the same samples for all."
        )
    bad = [number for number, f in enumerate(features) if not f.isfinite().all()]
    if bad:
        raise RequestError(f"interaction: the features of model {bad} are not finite.")
