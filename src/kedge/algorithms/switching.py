"""FedDyn→FedAvg: when one stage should end and the next begin, judged by the history.

Proposition 1: with C_t = (1/m) Σ_k E‖∇L_k(θ_k^t) − ∇L_k(θ*)‖², switch at the first T with T·(C_T −
mean(C_0…C_{T−1})) ≥ ζ/η. ζ/η is one threshold: its constants are undefined for the small α that is used (a
theorem's κ_0 would need α > 26.9 L). C_t has two estimates. "h": ‖h^t‖² ≤ C_t, on the server and free.
"clients": ∇L_k(θ_k^t) ≈ g_k and ∇L_k(θ*) ≈ ḡ_k, the mean of client k's g_k so far; C_t ≈ the mean of ‖g_k
− ḡ_k‖² over all m clients, stale ones included; it costs two models of memory a client. C_0 is the first
round's. The estimates are smoothed over `smooth` rounds.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from kedge.algorithms.feddyn import DynamicRegularizer
from kedge.algorithms.gradient_spread import GradientSpread
from kedge.core.algorithm import Algorithm
from kedge.core.errors import RequestError

History = Sequence[Mapping[str, Any]]


@dataclass(frozen=True)
class Proposition1:
    """FedDyn has given what it can: T·(C_T − mean of the earlier C) ≥ threshold."""

    threshold: float = 0.0
    estimate: Literal["h", "clients"] = "h"
    smooth: int = 10

    def __post_init__(self) -> None:
        if self.smooth < 1 or not self.threshold >= 0:
            raise RequestError(
                f"proposition1(threshold={self.threshold}, smooth={self.smooth}): "
                "need threshold ≥ 0 and smooth ≥ 1."
            )

    def watched(self, algorithm: Algorithm) -> Algorithm:
        """The method with what the rule has to see."""
        own = [c for c in algorithm.corrections if isinstance(c, DynamicRegularizer) and c.alpha]
        if not own:
            raise RequestError(
                f"proposition1 is about FedDyn: {algorithm.name} has neither h nor g_k. "
                "Use plateau, or a round."
            )
        if self.estimate == "h":
            return algorithm
        return replace(algorithm, corrections=(*algorithm.corrections, GradientSpread(own[0].alpha)))

    def __call__(self, history: History) -> bool:
        return bool(self.reached(history) and self.reached(history)[-1] >= self.threshold)

    def reached(self, history: History) -> list[float]:
        """T·(C_T − mean(C_0…C_{T−1})) for T = 1, 2, …; what a threshold is compared with."""
        key = "drift.h" if self.estimate == "h" else "drift.spread"
        raw = [float(line[key]) ** (2 if self.estimate == "h" else 1) for line in history]
        c = [sum(raw[t + 1 - self.smooth : t + 1]) / self.smooth for t in range(self.smooth - 1, len(raw))]
        return [t * c[t] - sum(c[:t]) for t in range(1, len(c))]


@dataclass(frozen=True)
class Plateau:
    """No value of the last `patience` evaluations is better than the best before them by more than `by`."""

    metric: str = "distributed.global.accuracy"
    patience: int = 10
    by: float = 0.0

    def __post_init__(self) -> None:
        if self.patience < 1 or not self.by >= 0:
            raise RequestError(
                f"plateau(patience={self.patience}, by={self.by}): need patience ≥ 1 and by ≥ 0."
            )

    def watched(self, algorithm: Algorithm) -> Algorithm:
        """The method as it is."""
        return algorithm

    def __call__(self, history: History) -> bool:
        sign = -1 if self.metric.endswith("loss") else 1
        values = [sign * line[self.metric] for line in history if line.get(self.metric) is not None]
        if history and not values and "distributed" in str(history[-1]):
            there = ", ".join(k for k in history[-1] if k.count(".") >= 2)
            raise RequestError(
                f"plateau(metric={self.metric!r}): the history has no such metric. It has {there}."
            )
        before, last = values[: -self.patience], values[-self.patience :]
        return bool(before) and max(last) <= max(before) + self.by


def proposition1(
    threshold: float = 0.0, estimate: Literal["h", "clients"] = "h", smooth: int = 10
) -> Proposition1:
    """Proposition 1 of FedDyn→FedAvg: the estimate of C_t has risen above its mean by enough."""
    return Proposition1(threshold, estimate, smooth)


def plateau(metric: str = "distributed.global.accuracy", patience: int = 10, by: float = 0.0) -> Plateau:
    """A metric has stopped getting better."""
    return Plateau(metric, patience, by)
