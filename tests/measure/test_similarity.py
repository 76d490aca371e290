"""Linear CKA against its other form, its invariances, and features that have no similarity."""

import numpy as np
import pytest
import torch
from torch import Tensor

from kedge.measure.similarity import cka, gram, linear_cka, mean_cka, mean_or_none


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def test_it_is_the_form_in_features() -> None:
    """‖YᵀX‖² / (‖XᵀX‖ ‖YᵀY‖) of the centered features (Kornblith et al., section 3)."""
    x, y = normal(30, 4), normal(30, 7, seed=1) + normal(30, 1) @ normal(1, 7)
    a, b = x.numpy() - x.numpy().mean(0), y.numpy() - y.numpy().mean(0)
    want = np.square(b.T @ a).sum() / (np.linalg.norm(a.T @ a) * np.linalg.norm(b.T @ b))
    assert linear_cka(x, y) == pytest.approx(want, abs=1e-12)


def test_rotation_scale_and_shift_change_nothing() -> None:
    x = normal(20, 5)
    q, _ = torch.linalg.qr(normal(5, 5, seed=2))
    assert linear_cka(x, 3 * x @ q + 1) == pytest.approx(1, abs=1e-12)


def test_orthogonal_features_have_none_in_common() -> None:
    q, _ = torch.linalg.qr(normal(10, 4) - normal(10, 4).mean(0))
    basis, _ = torch.linalg.qr(torch.cat([torch.ones(10, 1).double(), q], dim=1))
    assert linear_cka(basis[:, 1:3], basis[:, 3:5]) == pytest.approx(0, abs=1e-12)


def test_images_of_features_are_flattened() -> None:
    x = normal(6, 2, 3, 3)
    assert gram(x).equal(gram(x.flatten(1)))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_constant_features_have_no_similarity(dtype: torch.dtype) -> None:
    """0.1 has no exact mean in binary: after centering, rounding errors remain."""
    flat = torch.full((50, 3), 0.1, dtype=dtype)
    assert linear_cka(flat, normal(50, 3).to(dtype)) is None
    assert cka(gram(flat), gram(flat)) is None
    assert linear_cka(normal(1, 3), normal(1, 3)) is None
    assert linear_cka(torch.zeros(5, 2), torch.zeros(5, 2)) is None


def test_means_leave_out_what_has_no_value() -> None:
    x, y = normal(20, 3), normal(20, 3, seed=3)
    flat = torch.zeros(20, 3)
    only = linear_cka(x, y)
    assert mean_cka([gram(x), gram(flat), gram(y)]) == only
    assert mean_cka([gram(x)]) is None
    assert mean_or_none([None, 2.0, None, 4.0]) == 3.0
    assert mean_or_none([]) is None
