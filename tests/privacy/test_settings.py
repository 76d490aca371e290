"""The table [privacy]: off by default, complete or refused, and the split of the noise between two sums."""

from math import isclose
from typing import Any

import pytest

from kedge.config.experiment import resolve
from kedge.core.errors import RequestError
from kedge.privacy.settings import OFF, Privacy


def test_a_run_is_not_private_by_default() -> None:
    experiment = resolve({"name": "plain"})
    assert experiment.privacy == OFF
    assert not OFF.active
    assert "privacy" not in experiment.toml()


def test_the_configuration_of_a_private_run_has_every_value() -> None:
    experiment = resolve({"name": "private", "privacy": {"clip": 2, "noise": 0.5}})
    assert experiment.privacy == Privacy(2.0, 0.5)
    assert "[privacy]" in experiment.toml()
    assert "clip_rate = 0.2" in experiment.toml()


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ({"clip": 1.0}, "privacy.noise is missing"),
        ({"noise": 1.0}, "privacy.clip is missing"),
        ({"delta": 1e-6}, "privacy.clip and privacy.noise is missing"),
        ({"clip": 0.0, "noise": 1.0}, "privacy.clip = 0.0"),
        ({"clip": 1.0, "noise": -1.0}, "privacy.noise = -1.0"),
        ({"clip": 1.0, "noise": 1.0, "delta": 0.0}, "privacy.delta = 0.0"),
        ({"clip": 1.0, "noise": 1.0, "quantile": 1.5}, "privacy.quantile = 1.5"),
        ({"clip": 1.0, "nois": 1.0}, "unknown key privacy.nois. Did you mean 'noise'?"),
    ],
)
def test_an_incomplete_or_wrong_table_is_an_error(table: dict[str, Any], message: str) -> None:
    with pytest.raises(RequestError, match=message.replace(".", r"\.").replace("?", r"\?")):
        resolve({"name": "wrong", "privacy": table})


@pytest.mark.parametrize("noise", [0.3, 1.0, 4.0])
@pytest.mark.parametrize("expected", [1.0, 10.0, 500.0])
def test_sum_and_count_together_have_the_privacy_of_one_gaussian(noise: float, expected: float) -> None:
    """The sensitivities are the clip and 1/2, so the squared distances in units of the noise add up."""
    privacy = Privacy(1.0, noise, adaptive=True)
    multiplier, deviation = privacy.sum_multiplier(expected), privacy.count_deviation(expected)
    assert isclose(multiplier**-2 + (0.5 / deviation) ** 2, noise**-2)
    assert noise < multiplier <= noise * (4 / 3) ** 0.5 + 1e-12


def test_a_fixed_clip_needs_no_more_noise() -> None:
    assert Privacy(1.0, 1.3).sum_multiplier(10) == 1.3
    assert Privacy(1.0, 0.0, adaptive=True).sum_multiplier(10) == 0
    assert Privacy(1.0, 0.0, adaptive=True).count_deviation(10) == 0


def test_a_count_that_would_use_all_the_privacy_is_an_error() -> None:
    with pytest.raises(RequestError, match=r"privacy\.count_noise = 0\.5: too small for privacy\.noise = 1"):
        Privacy(1.0, 1.0, adaptive=True, count_noise=0.5).sum_multiplier(10)
