"""The accountant's ε against closed forms, numerical integration and a simulation."""

from math import erfc, exp, inf, isclose, sqrt

import numpy as np
import pytest
from tests.quick import every

from kedge.core.errors import RequestError
from kedge.core.sampling import Participation
from kedge.privacy.accountant import Accountant, amplified_rate, check_library
from kedge.privacy.settings import Privacy


def normal_cdf(x: float) -> float:
    return erfc(-x / sqrt(2)) / 2


def gaussian_delta(epsilon: float, sigma: float) -> float:
    """Theorem 8 of Balle and Wang (2018) for sensitivity 1."""
    return normal_cdf(0.5 / sigma - epsilon * sigma) - exp(epsilon) * normal_cdf(
        -0.5 / sigma - epsilon * sigma
    )


def sampled_delta(epsilon: float, sigma: float, rate: float) -> float:
    """δ(ε) of one Poisson-sampled Gaussian, by integration, for the worse of the two directions."""
    x = np.linspace(-40 * sigma, 40 * sigma + 1, 2_000_001)
    without = np.exp(-(x**2) / (2 * sigma**2))
    with_client = (1 - rate) * without + rate * np.exp(-((x - 1) ** 2) / (2 * sigma**2))
    unit = (x[1] - x[0]) / (sigma * sqrt(2 * np.pi))
    one = np.maximum(with_client - exp(epsilon) * without, 0).sum() * unit
    other = np.maximum(without - exp(epsilon) * with_client, 0).sum() * unit
    return float(max(one, other))


@pytest.mark.parametrize("sigma", [0.7, 1.0, 3.0])
@pytest.mark.parametrize("rounds", every(3, [10, 1, 400]))
def test_epsilon_without_amplification_is_the_analytic_gaussian(sigma: float, rounds: int) -> None:
    epsilon = Accountant(Privacy(1.0, sigma), 1.0).epsilon(rounds)
    if epsilon < 500:  # beyond, exp(ε) times a tiny number is not exact in the oracle
        assert isclose(gaussian_delta(epsilon, sigma / sqrt(rounds)), 1e-5, rel_tol=1e-5)


def test_epsilon_of_rounds_is_that_of_one_gaussian_with_less_noise() -> None:
    many = Accountant(Privacy(1.0, 6.0), 1.0).epsilon(36)
    assert isclose(many, Accountant(Privacy(1.0, 1.0), 1.0).epsilon(1), rel_tol=1e-9)


@pytest.mark.parametrize(("sigma", "rate"), [(1.0, 0.1), (0.6, 0.5), (2.0, 0.02)])
def test_epsilon_of_one_sampled_round_agrees_with_an_integral(sigma: float, rate: float) -> None:
    epsilon = Accountant(Privacy(1.0, sigma), rate).epsilon(1)
    assert sampled_delta(epsilon, sigma, rate) <= 1e-5 * (1 + 1e-6)
    assert sampled_delta(epsilon - 2e-3, sigma, rate) > 1e-5


@pytest.mark.parametrize(("sigma", "rate", "rounds"), every(2, [(1.0, 0.2, 20), (0.8, 0.05, 100)]))
def test_epsilon_of_many_sampled_rounds_agrees_with_a_simulation(
    sigma: float, rate: float, rounds: int
) -> None:
    """δ(ε) = E[max(0, 1 − exp(ε − L))] for the privacy loss L of all rounds together, in both directions."""
    epsilon = Accountant(Privacy(1.0, sigma, delta=1e-2), rate).epsilon(rounds)
    draws = np.random.default_rng(0)
    deltas = []
    for with_client in (True, False):
        loss = np.zeros(200_000)
        for _ in range(rounds):
            shift = draws.random(len(loss)) < rate if with_client else 0
            x = draws.normal(0, sigma, len(loss)) + shift
            ratio = np.log(1 - rate + rate * np.exp((2 * x - 1) / (2 * sigma**2)))
            loss += ratio if with_client else -ratio
        deltas.append(np.maximum(1 - np.exp(epsilon - loss), 0).mean())
    assert isclose(max(deltas), 1e-2, rel_tol=0.06)


def test_sampling_lowers_epsilon_and_rounds_raise_it() -> None:
    privacy = Privacy(1.0, 1.0)
    sampled, all_clients = Accountant(privacy, 0.1), Accountant(privacy, 1.0)
    assert sampled.epsilon(10) < all_clients.epsilon(10)
    values = [sampled.epsilon(rounds) for rounds in range(5)]
    assert values[0] == 0
    assert values == sorted(values)


def test_little_noise_has_a_coarse_bound_above_the_fine_one() -> None:
    fine, coarse = Accountant(Privacy(1.0, 0.4), 0.1), Accountant(Privacy(1.0, 0.1), 0.1)
    assert coarse.epsilon(3) > 10 * fine.epsilon(3)


@pytest.mark.parametrize("rate", [1.0, 0.1])
def test_with_much_noise_epsilon_is_almost_zero(rate: float) -> None:
    assert 0 <= Accountant(Privacy(1.0, 3e4), rate).epsilon(2) < 1e-3


def test_without_noise_epsilon_is_infinite() -> None:
    assert Accountant(Privacy(1.0, 0.0), 0.1).epsilon(1) == inf


def test_only_poisson_sampling_is_amplified() -> None:
    """ "bernoulli" draws again until a client takes part, and "exact" has no independent draws."""
    assert amplified_rate(Participation("poisson", share=0.1), 100) == 0.1
    assert amplified_rate(Participation("poisson", per_round=3), 12) == 0.25
    assert amplified_rate(Participation("bernoulli", share=0.1), 100) == 1
    assert amplified_rate(Participation("exact", share=0.1), 100) == 1


def test_a_missing_library_is_an_error_with_its_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    check_library()
    monkeypatch.setattr("kedge.privacy.accountant.find_spec", lambda name: None)
    with pytest.raises(RequestError, match=r"kedge\[privacy\]"):
        check_library()
