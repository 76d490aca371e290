"""The comparisons of a claim: pairs of places of a table, and their difference with every seed.

A run that does not reach a target counts as if it reached the target in its last round, which never
exaggerates the difference of two runs of equal length. A comparison with a run that diverged has no
difference.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from statistics import mean

from kedge.reproduce.measured import Measured, Place
from kedge.reproduce.paper import Claim, Entry

MANY = 1e9  # more rounds than any run has


@dataclass(frozen=True)
class Comparison:
    """Two places of the table. A difference is positive if it agrees with the claim."""

    first: Place
    second: Place
    lower: bool  # whether the claim says that the first number is lower than the second

    @property
    def name(self) -> str:
        """The compared places: "FedBug (10 %) over Vanilla in FedAvg, IID"."""
        first, second = self.first.entry, self.second.entry
        relation = "under" if self.lower else "over"
        if first.column == second.column:
            text = f"{first.row} {relation} {second.row} in {first.column}"
        else:
            text = f"{first.column} {relation} {second.column} in {first.row}"
        return f"{text} ({first.block})" if first.block else text

    @property
    def by_seed(self) -> dict[int, float]:
        """The difference with every seed that both places have; empty if one of these runs diverged."""
        differences = {}
        for seed in sorted(self.first.by_seed.keys() & self.second.by_seed.keys()):
            first, second = number_of(self.first, seed), number_of(self.second, seed)
            if first is None or second is None:
                return {}
            differences[seed] = (second - first) if self.lower else (first - second)
        return differences

    @property
    def difference(self) -> float | None:
        """The mean difference over the seeds."""
        return mean(self.by_seed.values()) if self.by_seed else None

    @property
    def unit(self) -> str:
        """The unit of the difference."""
        entry = self.first.entry
        return "points" if entry.percent else "rounds" if entry.target is not None else entry.metric

    @property
    def diverged(self) -> bool:
        """Whether there is no difference because a run diverged."""
        common = self.first.by_seed.keys() & self.second.by_seed.keys()
        return bool(common) and not self.by_seed

    @property
    def printed(self) -> bool | None:
        """Whether the printed numbers have the claimed sign; None if that is unknown."""
        above, below = printed_range(self.first.entry), printed_range(self.second.entry)
        if self.lower:
            above, below = below, above
        return True if above[0] > below[1] else False if above[1] <= below[0] else None


def comparisons(claim: Claim, measured: Measured) -> Iterator[Comparison]:
    """The comparisons of a claim for which the table has both places."""
    paper = measured.paper
    for block in claim.blocks or paper.blocks:
        for within in claim.within or (paper.columns if claim.rows else paper.rows):
            for left, right in claim.rows or claim.columns:
                # (row, column) of both places
                names = ((left, within), (right, within)) if claim.rows else ((within, left), (within, right))
                first, second = (measured.place(block, *name) for name in names)
                if first and second:
                    yield Comparison(first, second, claim.lower)


def size(comparison: Comparison) -> float:
    """The mean difference of a comparison that is measured."""
    return comparison.difference or 0.0


def number_of(place: Place, seed: int) -> float | None:
    """The number of a seed; the run's last round for a target that was not reached; None if it diverged."""
    value = place.by_seed[seed]
    return place.rounds.get(seed) if value is None and place.entry.target is not None else value


def printed_range(entry: Entry) -> tuple[float, float]:
    """The lowest and the highest value that a printed text allows; equal if the text is a number."""
    if entry.value is not None:
        return entry.value, entry.value
    if not entry.bound:
        return -math.inf, math.inf
    return (float(entry.bound[1:]) + 1 if entry.bound[0] == ">" else MANY), math.inf
