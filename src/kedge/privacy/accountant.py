"""Accountant: ε at δ after a number of rounds, computed by Google's library dp-accounting.

Two runs are neighbors if they differ in one client, whose uploads are zero in one of them. A round adds
Gaussian noise with the multiplier z to a sum that a client changes by at most the clip. If each client takes
part by an independent draw with probability q (the rule "poisson"), the round is a Poisson-sampled Gaussian
mechanism, and its privacy loss distributions are composed numerically, rounded so that ε is an upper bound.
For all other rules q is 1: T rounds are one Gaussian mechanism with multiplier z/√T, whose ε is exact (Balle
and Wang, 2018).
"""

from importlib.util import find_spec
from math import inf, sqrt
from typing import Any

import numpy as np

from kedge.core.errors import RequestError
from kedge.core.sampling import Participation
from kedge.privacy.settings import Privacy

INTERVAL = 1e-3  # between two values of a discretized privacy loss, for a multiplier of at least 0.32


def amplified_rate(participation: Participation, population: int) -> float:
    """The sampling rate that the accountant may use: 1 unless participation is Poisson sampling."""
    return participation.probability(population) if participation.rule == "poisson" else 1.0


class Accountant:
    """Computes ε for the rounds of a run; the privacy loss of one round is computed once."""

    def __init__(self, privacy: Privacy, rate: float) -> None:
        """`rate` is the result of `amplified_rate`."""
        self.noise, self.delta, self.rate = privacy.noise or 0.0, privacy.delta, rate
        self.round_loss: Any = None

    def epsilon(self, rounds: int) -> float:
        """ε at δ after `rounds` rounds; infinite without noise."""
        if not rounds:
            return 0.0
        if not self.noise:
            return inf
        if self.rate == 1:
            from dp_accounting.gaussian_mechanism import get_epsilon_gaussian

            with np.errstate(divide="ignore"):  # for much noise the library computes log(0) = −inf
                return float(get_epsilon_gaussian(self.noise / sqrt(rounds), self.delta))
        return float(self.loss().self_compose(rounds).get_epsilon_for_delta(self.delta))

    def loss(self) -> Any:
        """The privacy loss distribution of one round."""
        if self.round_loss is None:
            from dp_accounting.pld.privacy_loss_distribution import from_gaussian_mechanism

            interval = INTERVAL * max(1.0, 0.1 / self.noise**2)
            self.round_loss = from_gaussian_mechanism(
                self.noise, value_discretization_interval=interval, sampling_prob=self.rate
            )
        return self.round_loss


def check_library() -> None:
    """Raise if dp-accounting is not installed."""
    if find_spec("dp_accounting") is None:
        raise RequestError(
            "privacy.noise: the accountant needs the package dp-accounting, which is not installed. Install "
            "it with: pip install 'kedge[privacy]'."
        )
