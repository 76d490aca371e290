"""Sampling of a round's clients.

exact: the same number of clients in each round. bernoulli: each client with the same probability, drawn again
until at least one takes part. poisson: the same without a second draw, so that a round may have no client;
only this rule is the Poisson sampling of differential privacy.
"""

from dataclasses import dataclass
from functools import lru_cache
from typing import Annotated, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from kedge.core.errors import RequestError
from kedge.core.random import Purpose, permutation, uniforms
from kedge.core.ranges import Count, checked

BLOCK = 32  # rounds whose permutations are drawn in one call; the result does not depend on it


@lru_cache(maxsize=32)  # the runs of a pack alternate
def permutations(population: int, seed: int, block: int) -> NDArray[np.int64]:
    """A permutation of all clients for each round of a block."""
    rounds = np.arange(block * BLOCK, (block + 1) * BLOCK)
    return permutation(population, seed, Purpose.SAMPLING, round=rounds)


@checked(prefix="participation.")
@dataclass(frozen=True)
class Participation:
    """The sampling rule, and the number of clients per round or their share (default: all clients)."""

    rule: Literal["exact", "bernoulli", "poisson"] = "exact"
    per_round: Count | None = None
    share: Annotated[float, Field(gt=0, le=1)] | None = None

    def __post_init__(self) -> None:
        if self.per_round is not None and self.share is not None:
            raise RequestError("participation: give per_round or share, not both.")

    def count(self, population: int) -> int:
        """Clients per round; for the random rules the expected number as a whole number of at least 1."""
        if self.per_round is not None and self.per_round > population:
            raise RequestError(
                f"participation.per_round = {self.per_round}: there are only {population} clients. "
                "Lower it or make more clients."
            )
        if self.share is not None:
            return max(1, int(self.share * population + 1e-9))
        return population if self.per_round is None else self.per_round

    def probability(self, population: int) -> float:
        """The probability that a client takes part in a round, before empty draws are repeated."""
        if self.rule != "exact" and self.share is not None:
            return self.share
        return self.count(population) / population

    def expected(self, population: int) -> float:
        """The expected number of clients in a round, before empty draws are repeated."""
        if self.rule != "exact" and self.share is not None:
            return self.share * population
        return float(self.count(population))

    def sample(self, population: int, seed: int, round: int) -> list[int]:
        """The clients of a round, in ascending order; empty in some rounds if the rule is "poisson"."""
        if self.rule == "exact":
            count = self.count(population)
            return sorted(permutations(population, seed, round // BLOCK)[round % BLOCK, :count].tolist())
        probability, retry = self.probability(population), 0
        while True:  # ends with probability 1; each retry uses another step of the key
            drawn = uniforms(seed, Purpose.SAMPLING, round=round, step=retry, position=np.arange(population))
            chosen = np.flatnonzero(drawn <= probability)
            if len(chosen) or self.rule == "poisson":
                return [int(c) for c in chosen]
            retry += 1
