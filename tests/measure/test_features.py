"""The interaction tensor of features with known clusters, and columns that are not features."""

import time

import numpy as np
import pytest
import torch
from torch import Tensor

from kedge.core.errors import RequestError
from kedge.measure.features import NO_CLUSTER, Clusters, interaction, principal_columns


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def rotated(features: Tensor, seed: int) -> Tensor:
    """The same features in another orthonormal basis."""
    q, _ = torch.linalg.qr(normal(features.shape[1], features.shape[1], seed=seed))
    return torch.matmul(features, q)


def graded(samples: int = 400, d: int = 6) -> Tensor:
    """Features of well separated strengths."""
    return normal(samples, d) * torch.tensor([32.0, 16, 8, 4, 2, 1], dtype=torch.float64)[:d]


def test_a_model_in_another_basis_has_the_same_features() -> None:
    one = graded()
    found = interaction([one, rotated(one, 1), 3 * rotated(one, 2)], Clusters(4))
    assert found.labels.tolist() == [[0, 1, 2, 3]] * 3
    assert found.clusters == found.components == 4
    assert found.frequency.tolist() == [3, 3, 3, 3]
    assert found.shared(0, 2) == 4


def test_models_of_independent_features_share_none() -> None:
    found = interaction([graded(4000), graded(4000).flip(0)], Clusters(5))
    assert found.clusters == 10
    assert found.frequency.tolist() == [1] * 10
    assert found.shared(0, 1) == 0


def test_the_greedy_reading_takes_what_resembles_the_opener_and_components_take_the_chain() -> None:
    """a, a+b, b with a and b orthogonal: |ρ| of neighbors is √½, of a and b 0."""
    a, b = torch.linalg.qr(normal(200, 3) - normal(200, 3).mean(0))[0].T[:2]
    a, b = a - a.mean(), b - b.mean()
    b = b - a * (a @ b) / (a @ a)
    a, b = a / a.norm(), b / b.norm()
    models = [v[:, None] for v in (a, a + b, b)]
    found = interaction(models, Clusters(1, 0.5))
    assert found.labels.flatten().tolist() == [0, 0, 1]
    assert (found.clusters, found.components) == (2, 1)
    assert found.correlation[0, 1] == pytest.approx(0.5**0.5, abs=1e-9)


def test_clusters_of_the_first_models_do_not_depend_on_those_after_them() -> None:
    models = [graded(), rotated(graded(), 3), normal(400, 6, seed=5), normal(400, 6, seed=6)]
    whole, first = interaction(models, Clusters(4)), interaction(models[:3], Clusters(4))
    cut = whole.first(3)
    assert cut.labels.equal(first.labels)
    assert cut.clusters == first.clusters
    assert cut.threshold == pytest.approx(first.threshold, abs=1e-12)
    assert cut.tensor().equal(first.tensor())


def test_the_tensor_marks_samples_strictly_above_the_quantile() -> None:
    """One model, one feature with |v| = 1…10 of 10: the 90 % quantile by interpolation is 9.1 of 10."""
    one = torch.arange(1, 11, dtype=torch.float64)[:, None] * torch.tensor([-1.0]).double()
    found = interaction([one], Clusters(1))
    assert found.threshold == pytest.approx(0.91, abs=1e-12)
    assert found.tensor()[0, :, 0].tolist() == [False] * 9 + [True]


def test_centred_features_are_the_principal_components() -> None:
    """Far from the origin the first singular vector is the mean, unless the features are centered."""
    cloud = graded(300, 3) + 1000
    assert interaction([cloud, rotated(cloud - 1000, 1)], Clusters(3, 0.9)).clusters > 3
    assert interaction([cloud, rotated(cloud - 1000, 1)], Clusters(3, 0.9, centered=True)).clusters == 3


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_constant_and_missing_directions_are_no_features(dtype: torch.dtype) -> None:
    flat = torch.full((50, 4), 0.1, dtype=dtype)
    line = torch.linspace(-1, 1, 50, dtype=dtype)[:, None] * torch.tensor([[1.0, 2, 3, 0]], dtype=dtype)
    found = interaction([flat, line, torch.zeros(50, 4, dtype=dtype)], Clusters(3))
    assert found.labels.tolist() == [[NO_CLUSTER] * 3, [0, NO_CLUSTER, NO_CLUSTER], [NO_CLUSTER] * 3]
    assert (found.clusters, found.components, found.shared(0, 2)) == (1, 1, 0)
    none = interaction([flat, flat], Clusters(3))
    assert (none.clusters, none.components, none.threshold) == (0, 0, None)
    assert none.tensor().shape == (2, 50, 0)
    assert none.correlation.isfinite().all()


def test_there_are_no_more_features_than_the_narrowest_model_has() -> None:
    found = interaction([normal(30, 5), normal(30, 2, seed=1)], Clusters(20))
    assert found.labels.shape == (2, 2)


def test_scores_are_the_projections_on_the_first_singular_vectors() -> None:
    phi = normal(40, 5)
    u, sigma, _ = np.linalg.svd(phi.numpy(), full_matrices=False)
    got = principal_columns(phi, 3).score.numpy()
    assert np.abs(got) == pytest.approx(np.abs((u * sigma).T[:3]), abs=1e-10)


@pytest.mark.parametrize(
    ("settings", "message"),
    [((0,), "components = 0"), ((1, 1.0), "correlation = 1.0"), ((1, 0.5, -0.1), "quantile = -0.1")],
)
def test_wrong_settings_are_refused(settings: tuple[float, ...], message: str) -> None:
    with pytest.raises(RequestError, match=message):
        Clusters(*settings)  # type: ignore[arg-type]  # on purpose


def test_features_that_cannot_be_compared_are_refused() -> None:
    with pytest.raises(RequestError, match="the same samples for all"):
        interaction([normal(4, 2), normal(5, 2)])
    with pytest.raises(RequestError, match=r"model \[1\] are not finite"):
        interaction([normal(4, 2), normal(4, 2) * torch.nan])


@pytest.mark.slow
def test_twelve_models_of_ten_thousand_samples_take_less_than_a_minute() -> None:
    """The standard CNN has d = 192, the ResNet-20 of FedDyn→FedAvg only 64."""
    models = [normal(10_000, 192, seed=seed).float() for seed in range(12)]
    start = time.perf_counter()
    found = interaction(models, Clusters(20))
    assert found.clusters == 240
    assert found.components == 240
    assert found.tensor().shape == (12, 10_000, 240)
    assert time.perf_counter() - start < 60
