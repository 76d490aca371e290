"""Who takes part in a round: exactly so many clients, or each with a probability (at least one)."""

from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from kedge.core.errors import RequestError
from kedge.core.random import Purpose, permutation, uniforms

BLOCK = 32  # rounds whose orders are drawn together; the result does not depend on it


@lru_cache(maxsize=32)  # runs of a pack ask in turns
def orders(population: int, seed: int, block: int) -> NDArray[np.int64]:
    """For each round of a block, all clients in random order."""
    rounds = np.arange(block * BLOCK, (block + 1) * BLOCK)
    return permutation(population, seed, Purpose.SAMPLING, round=rounds)


@dataclass(frozen=True)
class Participation:
    """The rule, and either a number of clients per round or a share of all (default: everybody)."""

    rule: Literal["exact", "bernoulli"] = "exact"
    per_round: int | None = None
    share: float | None = None

    def __post_init__(self) -> None:
        if self.per_round is not None and self.share is not None:
            raise RequestError("participation: give per_round or share, not both.")
        if self.per_round is not None and self.per_round < 1:
            raise RequestError(
                f"participation.per_round = {self.per_round}: need at least 1 client per round."
            )
        if self.share is not None and not 0 < self.share <= 1:
            raise RequestError(f"participation.share = {self.share}: need 0 < share ≤ 1.")

    def count(self, population: int) -> int:
        """Clients per round: exactly, or in expectation before the empty draws are repeated."""
        if self.per_round is not None and self.per_round > population:
            raise RequestError(
                f"participation.per_round = {self.per_round}: there are only {population} clients. "
                "Lower it or make more clients."
            )
        if self.share is not None:
            return max(1, int(self.share * population + 1e-9))
        return population if self.per_round is None else self.per_round

    def sample(self, population: int, seed: int, round: int) -> list[int]:
        """The clients of a round, in order."""
        count = self.count(population)
        if self.rule == "exact":
            return sorted(orders(population, seed, round // BLOCK)[round % BLOCK, :count].tolist())
        chance = self.share if self.share is not None else count / population
        retry = 0
        while True:  # ends with probability 1; each retry is another step of the key
            drawn = uniforms(seed, Purpose.SAMPLING, round=round, step=retry, position=np.arange(population))
            chosen = np.flatnonzero(drawn <= chance)
            if len(chosen):
                return [int(c) for c in chosen]
            retry += 1
