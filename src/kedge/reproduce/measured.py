"""A published table with what was measured in every place."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import mean, stdev

from kedge.reproduce.paper import Entry, Paper
from kedge.reproduce.records import Record


@dataclass(frozen=True)
class Place:
    """One number of the table: as printed, and as measured with every seed."""

    entry: Entry
    by_seed: Mapping[int, float | None]  # None: the target was not reached, or the run diverged

    @property
    def values(self) -> list[float]:
        """The measured numbers, in the unit of the print."""
        return [value for value in self.by_seed.values() if value is not None]

    @property
    def mean(self) -> float | None:
        """The mean over the seeds; None if a seed has no number."""
        complete = self.values and len(self.values) == len(self.by_seed)
        return mean(self.values) if complete else None

    @property
    def std(self) -> float | None:
        """The sample standard deviation over the seeds."""
        return stdev(self.values) if self.mean is not None and len(self.values) > 1 else None

    @property
    def difference(self) -> float | None:
        """Measured minus printed."""
        if self.mean is None or self.entry.value is None:
            return None
        return self.mean - self.entry.value


@dataclass(frozen=True)
class Measured:
    """A paper's table with everything that was measured of it."""

    paper: Paper
    scale: str
    places: tuple[Place, ...]  # in the order of paper.entries
    records: tuple[Record, ...]  # the runs that were used

    def place(self, block: str, row: str, column: str) -> Place | None:
        """The number of a block, a row and a column."""
        wanted = self.paper.places.get((block, row, column))
        return next((one for one in self.places if one.entry is wanted), None) if wanted else None

    @property
    def differences(self) -> list[float]:
        """Measured minus printed, of all places that have both, in percent points."""
        found = [place.difference for place in self.places if place.entry.percent]
        return [value for value in found if value is not None]


def value_of(entry: Entry, record: Record, at: str | None = None) -> float | None:
    """The number of an entry by a run's history, in the unit of the print; None if there is none."""
    curve: Sequence[tuple[int, float]] = record.history.get(entry.metric, ())
    at = at or entry.at
    if entry.target is not None:
        return next((float(round) for round, value in curve if value >= entry.target), None)
    if record.diverged or not curve:
        return None
    if at == "best":
        found: float | None = (min if ".loss" in entry.metric else max)(value for _, value in curve)
    elif at == "last":
        found = curve[-1][1]
    else:
        found = dict(curve).get(int(at))
    return None if found is None else found * 100 if entry.percent else found
