"""Times of rounds as ratios to FedAvg's, from blocks that alternate with blocks of FedAvg.

The blocks are in the order A B A C A …, where A is FedAvg. A ratio is taken to the mean of the two blocks of
FedAvg next to it, so that a slow moment of the machine affects both. FedAvg has a ratio as well: its distance
from 1 is the error of the measurement.
"""

from collections.abc import Mapping, Sequence
from statistics import quantiles
from typing import Literal, NamedTuple

from kedge.bench.rounds import Round
from kedge.bench.timing import WARM_UP_ROUNDS, round_seconds

BASE = "fedavg"
BLOCK_ROUNDS = 5
Verdict = Literal["yes", "no", "open"]


class Ratio(NamedTuple):
    """The ratio of two times: median and quartiles of the turns."""

    middle: float
    low: float
    high: float

    def within(self, bound: float) -> Verdict:
        """Whether the ratio is at most `bound`; "open" if the bound is between the quartiles."""
        if self.high <= bound:
            return "yes"
        return "no" if self.low > bound else "open"


def quartiles(ratios: Sequence[float]) -> Ratio:
    """Median and quartiles of at least one ratio."""
    low, middle, high = quantiles(ratios, n=4, method="inclusive") if len(ratios) > 1 else 3 * [ratios[0]]
    return Ratio(middle, low, high)


def ratios_to_base(rounds: Mapping[str, Round], device: str) -> dict[str, float]:
    """One turn: the time of every block relative to the blocks of BASE before and after it."""
    ratios = {}
    before = block_seconds(rounds[BASE], device)
    for name, round in rounds.items():
        seconds = block_seconds(round, device)
        after = block_seconds(rounds[BASE], device)
        ratios[name] = 2 * seconds / (before + after)
        before = after
    return ratios


def block_seconds(round: Round, device: str) -> float:
    """Seconds of the fastest of BLOCK_ROUNDS rounds: other processes only make a round slower."""
    numbers = range(WARM_UP_ROUNDS, WARM_UP_ROUNDS + BLOCK_ROUNDS)
    return min(round_seconds(round, number, device) for number in numbers)
