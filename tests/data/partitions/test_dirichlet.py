import numpy as np
import pytest

from kedge.data.partitions.dirichlet import dirichlet, log_gammas


@pytest.mark.parametrize("alpha", [0.05, 0.3, 1.0, 10.0])
def test_dirichlet_has_the_mean_and_variance_of_the_closed_form(alpha: float) -> None:
    """An entry of Dir(α·1_C) has mean 1/C and variance (1/C)(1 − 1/C)/(C·α + 1)."""
    size = 5
    drawn = dirichlet(alpha, 20_000, size, seed=1)
    variance = 1 / size * (1 - 1 / size) / (size * alpha + 1)
    np.testing.assert_allclose(drawn.sum(axis=1), 1, rtol=1e-12)
    np.testing.assert_allclose(drawn.mean(axis=0), 1 / size, atol=5 * np.sqrt(variance / 20_000))
    np.testing.assert_allclose(drawn.var(axis=0), variance, rtol=0.06)


@pytest.mark.parametrize("alpha", [0.5, 2.5])
def test_gammas_have_mean_and_variance_alpha(alpha: float) -> None:
    drawn = np.exp(log_gammas(alpha, 50_000, 1, seed=2))
    assert abs(drawn.mean() - alpha) < 5 * np.sqrt(alpha / 50_000)
    assert abs(drawn.var() / alpha - 1) < 0.06


@pytest.mark.parametrize("alpha", [1e-300, 1e-6, 1e-3, 0.01, 1e16, 1.7e308])
def test_extreme_alpha_gives_finite_rows_that_sum_to_one(alpha: float) -> None:
    drawn = dirichlet(alpha, 500, 10, seed=3)
    assert np.isfinite(drawn).all()
    np.testing.assert_allclose(drawn.sum(axis=1), 1, rtol=1e-12)


def test_tiny_alpha_gives_one_class_each_and_every_class_its_turn() -> None:
    drawn = dirichlet(1e-5, 2000, 4, seed=4)
    assert (drawn.max(axis=1) > 0.999).mean() > 0.99
    np.testing.assert_allclose(np.bincount(drawn.argmax(axis=1)) / 2000, 0.25, atol=0.05)


def test_rows_and_rounds_do_not_depend_on_what_is_drawn_with_them() -> None:
    together = dirichlet(0.3, 6, 5, seed=5, round=np.array([7, 8]))
    assert together.shape == (2, 6, 5)
    np.testing.assert_array_equal(together[1], dirichlet(0.3, 6, 5, seed=5, round=8))
    np.testing.assert_array_equal(together[0, :2], dirichlet(0.3, 2, 5, seed=5, round=7))
    assert not np.array_equal(together[0], together[1])
