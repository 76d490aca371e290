"""FedDyn→FedAvg (anonymous, under review): when FedDyn has given what it can, judged by its history.

Proposition 1: with C_t = (1/m) Σ_k E‖∇L_k(θ_k^t) − ∇L_k(θ*)‖², switch at the first T with T·(C_T −
mean(C_0…C_{T−1})) ≥ ζ/η. ζ/η is one threshold: its constants are undefined for the small α that is used (a
theorem's κ_0 would need α > 26.9 L). C_t has two estimates. "h": ‖h^t‖² ≤ C_t, on the server and free.
"clients": ∇L_k(θ_k^t) ≈ g_k and ∇L_k(θ*) ≈ ḡ_k, the mean of client k's g_k so far; C_t ≈ the mean of ‖g_k
− ḡ_k‖² over all m clients, stale ones included; it costs two models of memory a client. Both are taken at
the end of a round and smoothed over `smooth` rounds; C_0 is the first value, so that C_T is known after
smooth + T rounds.
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
    """FedDyn has given what it can: T·(C_T − mean of the earlier C) ≥ threshold."""

    threshold: float = 0.0
    estimate: Literal["h", "clients"] = "h"
    smooth: int = 10

    def with_measurements(self, algorithm: Algorithm) -> Algorithm:
        """The method with what the rule has to see."""
        own = [c for c in algorithm.corrections if isinstance(c, DynamicRegularizer) and c.alpha]
        if not own:
            raise RequestError(
                f"proposition1 is about FedDyn: {algorithm.name} has neither h nor g_k. "
                "Use plateau, or a round."
            )
        if self.estimate == "h":
            return algorithm
        spread = GradientSpread(own[0].alpha, own[0].scaling)
        return replace(algorithm, corrections=(*algorithm.corrections, spread))

    def __call__(self, history: History) -> bool:
        reached = self.reached(history)
        return bool(reached) and reached[-1] >= self.threshold

    def reached(self, history: History) -> list[float]:
        """T·(C_T − mean(C_0…C_{T−1})) for T = 1, 2, …; what a threshold is compared with."""
        raw, s = self.estimates(history), self.smooth
        c = [sum(raw[t - s : t]) / s for t in range(s, len(raw) + 1)]
        return [t * c[t] - before for t, before in enumerate(accumulate(c[:-1]), 1)]

    def estimates(self, history: History) -> list[float]:
        """C_t of every round, not smoothed; a norm that has overflowed is infinite."""
        key, power = ("drift.h", 2) if self.estimate == "h" else ("drift.spread", 1)
        without = next((line["round"] for line in history if key not in line), None)
        if without is not None:
            raise RequestError(
                f"proposition1(estimate={self.estimate!r}): round {without} of the history has no {key}. "
                "FedDyn's rounds have drift.h; drift.spread is there where the rule itself asked for it."
            )
        return [inf if line[key] is None else float(line[key]) ** power for line in history]


@checked
def proposition1(
    threshold: Annotated[float, Field(ge=0)] = 0.0,
    estimate: Literal["h", "clients"] = "h",
    smooth: Annotated[int, Field(ge=1)] = 10,
) -> Proposition1:
    """FedDyn's estimated C_t has risen above its mean so far by enough (Proposition 1)."""
    return Proposition1(threshold, estimate, smooth)


def threshold_of(
    history: History, share: float = 0.75, estimate: Literal["h", "clients"] = "h", smooth: int = 10
) -> float:
    """The threshold with which proposition1 would have ended this run of FedDyn at that share of its rounds.

    It lies halfway between what was reached there and the most that was reached before. It belongs to this
    model, these data and this α; nothing says that it carries over to others.
    """
    rule = proposition1(0.0, estimate, smooth)
    at = round(share * len(history)) if 0 < share < 1 else 0
    if at <= smooth:
        raise RequestError(
            f"threshold_of(share={share}, smooth={smooth}) of {len(history)} rounds: "
            f"need 0 < share < 1 and more than {smooth} rounds before the switch."
        )
    *before, there = rule.reached(history[:at])
    most = max([*before, -inf])
    if there < 0 or there <= most:
        tops = zip(before, accumulate(before, max, initial=-inf), strict=False)
        can = [str(smooth + t) for t, (value, top) in enumerate(tops, 1) if value > top and value >= 0]
        raise RequestError(
            f"threshold_of(share={share}): no threshold ≥ 0 ends this run after round {at}: "
            f"T·(C_T − mean) is {there:.4g} there and was up to {most:.4g} before. "
            f"The nearest rounds that one can give: {', '.join(can[-5:]) or 'none'}."
        )
    middle = (max(most, 0.0) + there) / 2
    return middle if middle > most else there
