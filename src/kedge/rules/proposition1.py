"""FedDyn→FedAvg (anonymous, under review): the round from which FedDyn no longer helps, from its history.

Proposition 1: with C_t = (1/m) Σ_k E‖∇L_k(θ_k^t) − ∇L_k(θ*)‖², switch to FedAvg at the first T with

    T·(C_T − mean(C_0…C_{T−1})) ≥ ζ/η

ζ/η is a threshold of the user: the paper defines its constants only for α > 26.9 L, far above the α in use.
C_t has two estimates, taken at the end of each round:

    "h"        ‖h^t‖² ≤ C_t, which the server has anyway
    "clients"  the mean of ‖g_k − ḡ_k‖² over all m clients (gradient_spread.py); each stores two models

In the second, g_k estimates ∇L_k(θ_k^t), and ḡ_k, the mean of client k's g_k so far, estimates ∇L_k(θ*). Both
are smoothed over `smooth` rounds. C_0 is the first smoothed value, so C_T is known after smooth + T rounds.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from math import inf
from typing import Annotated, Any, Literal

from pydantic import Field

from kedge.algorithms.feddyn import DynamicRegularizer
from kedge.core.algorithm import Algorithm
from kedge.core.errors import RequestError
from kedge.core.ranges import checked
from kedge.rules.gradient_spread import GradientSpread

History = Sequence[Mapping[str, Any]]


@dataclass(frozen=True)
class Proposition1:
    """Ends a stage of FedDyn as soon as T·(C_T − mean of the earlier C) ≥ `threshold`."""

    threshold: float = 0.0
    estimate: Literal["h", "clients"] = "h"
    smooth: int = 10

    def with_measurements(self, algorithm: Algorithm) -> Algorithm:
        """The algorithm; for estimate="clients" with the correction that measures C_t."""
        dynamic = [c for c in algorithm.corrections if isinstance(c, DynamicRegularizer) and c.alpha]
        if not dynamic:
            raise RequestError(
                f"proposition1 is about FedDyn: {algorithm.name} has neither h nor g_k. "
                "Use plateau, or a round."
            )
        if self.estimate == "h":
            return algorithm
        spread = GradientSpread(dynamic[0].alpha, dynamic[0].scaling)
        return replace(algorithm, corrections=(*algorithm.corrections, spread))

    def __call__(self, history: History) -> bool:
        values = self.criterion(history)
        return bool(values) and values[-1] >= self.threshold

    def criterion(self, history: History) -> list[float]:
        """T·(C_T − mean(C_0…C_{T−1})) for T = 1, 2, …, which the rule compares with the threshold."""
        raw, width = self.estimates(history), self.smooth
        c = [sum(raw[t - width : t]) / width for t in range(width, len(raw) + 1)]
        return [t * c[t] - before for t, before in enumerate(accumulate(c[:-1]), 1)]

    def estimates(self, history: History) -> list[float]:
        """The estimate of C_t in every round, not smoothed; infinite if a norm overflowed."""
        key, power = ("drift.h", 2) if self.estimate == "h" else ("drift.spread", 1)
        missing = next((line["round"] for line in history if key not in line), None)
        if missing is not None:
            raise RequestError(
                f"proposition1(estimate={self.estimate!r}): round {missing} of the history has no {key}. "
                "FedDyn's rounds have drift.h; for drift.spread, use this rule or measure.spread = true."
            )
        return [inf if line[key] is None else float(line[key]) ** power for line in history]


@checked
def proposition1(
    threshold: Annotated[float, Field(ge=0)] = 0.0,
    estimate: Literal["h", "clients"] = "h",
    smooth: Annotated[int, Field(ge=1)] = 10,
) -> Proposition1:
    """Proposition 1: FedDyn's estimated C_t exceeds the mean of its earlier values by enough."""
    return Proposition1(threshold, estimate, smooth)


def threshold_of(
    history: History, share: float = 0.75, estimate: Literal["h", "clients"] = "h", smooth: int = 10
) -> float:
    """The threshold with which proposition1 would have ended this run of FedDyn after `share` of its rounds.

    It is halfway between the value of the criterion in that round and the largest value before it. Other
    models, data and α may need another threshold.
    """
    rule = proposition1(0.0, estimate, smooth)
    last_round = round(share * len(history)) if 0 < share < 1 else 0
    if last_round <= smooth:
        raise RequestError(
            f"threshold_of(share={share}, smooth={smooth}) of {len(history)} rounds: "
            f"need 0 < share < 1 and more than {smooth} rounds before the switch."
        )
    *before, value = rule.criterion(history[:last_round])
    highest = max([*before, -inf])
    if value < 0 or value <= highest:
        raise RequestError(
            f"threshold_of(share={share}): no threshold ≥ 0 ends this run after round {last_round}: "
            f"T·(C_T − mean) is {value:.4g} in that round and was up to {highest:.4g} before. "
            f"The nearest earlier rounds that a threshold can give: "
            f"{', '.join(str(smooth + t) for t in new_maxima(before)[-5:]) or 'none'}."
        )
    middle = (max(highest, 0.0) + value) / 2
    return middle if middle > highest else value  # rounding may make them equal


def new_maxima(values: Sequence[float]) -> list[int]:
    """The positions, from 1, of values ≥ 0 that exceed all values before them."""
    maxima = accumulate(values, max, initial=-inf)  # of the values before each value
    return [
        t
        for t, (value, before) in enumerate(zip(values, maxima, strict=False), 1)
        if value > before and value >= 0
    ]
