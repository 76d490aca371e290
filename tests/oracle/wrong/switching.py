"""Wrong variants of Proposition 1's rule."""

from dataclasses import replace
from functools import partial

from tests.oracle.wrong.variant import Checks

from kedge.algorithms import fedavg, feddyn
from kedge.audit.oracles import switching
from kedge.core.algorithm import Algorithm
from kedge.rules.gradient_spread import GradientSpread
from kedge.rules.proposition1 import History, Proposition1


class WithItself(Proposition1):
    """C_T is part of the mean with which it is compared."""

    def criterion(self, history: History) -> list[float]:
        c = self.estimates(history)
        return [t * (c[t] - sum(c[: t + 1]) / (t + 1)) for t in range(1, len(c))]


class Unsquared(Proposition1):
    """‖h‖ for ‖h‖²."""

    def estimates(self, history: History) -> list[float]:
        return [float(line["drift.h"]) for line in history]


class Late(Proposition1):
    """The rule is called with the values up to C_{T−1}."""

    def __call__(self, history: History) -> bool:
        return Proposition1.__call__(self, history[:-1])


class OneAlpha(Proposition1):
    """g_k = −α u_k with the same α for every client, although each has its own."""

    def with_measurements(self, algorithm: Algorithm) -> Algorithm:
        return replace(algorithm, corrections=(*algorithm.corrections, GradientSpread(0.1)))


DATA = feddyn(0.1, "data")
STAGES = (feddyn(0.1), fedavg("uniform"))

WRONG: Checks = {
    "proposition 1 with itself": partial(switching.proposition1, WithItself(smooth=1)),
    "proposition 1 with itself, bound": partial(switching.met_where_bound_rises, WithItself(smooth=1)),
    "proposition 1 unsquared": partial(switching.proposition1, Unsquared(smooth=1)),
    "proposition 1 late": partial(switching.proposition1, Late(smooth=1)),
    "proposition 1 late, runner": partial(switching.runner_switches, Late(smooth=1), *STAGES),
    "proposition 1 unsquared, runner": partial(switching.runner_switches, Unsquared(smooth=1), *STAGES),
    "proposition 1 with one α": partial(switching.estimates, OneAlpha(), DATA),
    "proposition 1 smoothed": partial(switching.proposition1, Proposition1(smooth=2)),
}

HARMLESS: Checks = {
    "one α is right if all clients have the same": partial(switching.estimates, OneAlpha(), feddyn(0.1)),
}
