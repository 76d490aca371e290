"""A published table with the measured numbers of all its places, a place being one number of the table."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from statistics import mean, stdev

from kedge.config.grid import Cell
from kedge.reproduce.paper import Entry, Paper, cell_of
from kedge.reproduce.records import Record

FULL = "full"  # the scale with the paper's number of rounds


@dataclass(frozen=True)
class Place:
    """One number of the table: as printed, and as measured with every seed."""

    entry: Entry
    by_seed: Mapping[int, float | None]  # None: the run did not reach the target, or diverged
    cell: str = ""  # the name of the grid's cell that was trained
    at: str = ""  # the round used instead of entry.at in a run with fewer rounds; "": entry.at
    # Seed -> rounds of the run, for runs that did not diverge.
    rounds: Mapping[int, int] = field(default_factory=dict)
    comparable: bool = True  # whether measured and printed number have the same meaning

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
        """Measured minus printed; None if they are not comparable."""
        if self.mean is None or self.entry.value is None or not self.comparable:
            return None
        return self.mean - self.entry.value


@dataclass(frozen=True)
class Measured:
    """A paper's table with all measured numbers."""

    paper: Paper
    scale: str
    places: tuple[Place, ...]  # in the order of paper.entries
    records: tuple[Record, ...]  # the runs that were used

    @cached_property
    def by_name(self) -> dict[tuple[str, str, str], Place]:
        """The places by block, row and column."""
        return {(place.entry.block, place.entry.row, place.entry.column): place for place in self.places}

    def place(self, block: str, row: str, column: str) -> Place | None:
        """The place with these names, or None."""
        return self.by_name.get((block, row, column))

    @property
    def differences(self) -> list[float]:
        """Measured minus printed of all places with both, in percentage points."""
        values = [place.difference for place in self.places if place.entry.percent]
        return [value for value in values if value is not None]

    @property
    def mean_absolute_difference(self) -> float | None:
        """The mean absolute difference, in percentage points."""
        return mean(map(abs, self.differences)) if self.differences else None

    @property
    def seeds(self) -> list[int]:
        """All seeds of the runs in the table."""
        return sorted({seed for place in self.places for seed in place.by_seed})


def measured_table(
    paper: Paper,
    cells: list[Cell],
    records: Iterable[Record],
    scale: str,
    identities: Mapping[str, str],
    seeds: Collection[int] | None = None,
) -> Measured:
    """The table with the numbers of all runs at this scale, or of the runs with `seeds`.

    `cells` are the cells of the grid with the paper's number of rounds. `identities` are the identities of
    their runs at this scale, by name of the cell. A record belongs to the cell with the same identity.
    """
    runs: dict[str, list[Record]] = {}
    for record in sorted(records, key=lambda record: record.seed):
        if record.scale == scale and (seeds is None or record.seed in seeds):
            runs.setdefault(record.identity, []).append(record)
    places: list[Place] = []
    used: dict[tuple[str, int], Record] = {}
    for entry in paper.entries:
        cell = cell_of(entry, cells)
        measured = [run for run in runs.get(identities[cell.name], []) if is_measured(entry, run)]
        places.append(place_of(entry, cell, measured, scale))
        used |= {run.key: run for run in measured}
    return Measured(paper, scale, tuple(places), tuple(used.values()))


def is_measured(entry: Entry, record: Record) -> bool:
    """Whether a run has a result for an entry: it has the metric, or it diverged."""
    return bool(record.history.get(entry.metric)) or record.diverged


def place_of(entry: Entry, cell: Cell, runs: Sequence[Record], scale: str) -> Place:
    """The place of an entry, given the runs of its cell."""
    at = [entry.at if scale == FULL else scaled_at(entry, run, cell.experiment.rounds) for run in runs]
    return Place(
        entry,
        {run.seed: value_of(entry, run, read) for run, read in zip(runs, at, strict=True)},
        cell.name,
        next((read for read in at if read != entry.at), ""),
        {run.seed: run.rounds for run in runs if not run.diverged},
        comparable=scale == FULL or entry.target is None,
    )


def scaled_at(entry: Entry, record: Record, rounds: int) -> str:
    """The evaluation of a shortened run that corresponds to `entry.at` in a run of `rounds` rounds.

    The round is scaled with the run's length; the last evaluation up to that round is used.
    """
    evaluated = [round for round, _ in record.history.get(entry.metric, ())]
    if not entry.at.isdigit() or not evaluated:
        return entry.at
    scaled = int(entry.at) * record.rounds / rounds
    round = max((earlier for earlier in evaluated if earlier <= scaled), default=evaluated[0])
    return "last" if round == evaluated[-1] else str(round)


def value_of(entry: Entry, record: Record, at: str | None = None) -> float | None:
    """The number of an entry in a run's history, in the unit of the print, or None."""
    curve: Sequence[tuple[int, float]] = record.history.get(entry.metric, ())
    at = at or entry.at
    if entry.target is not None:
        return next((float(round) for round, value in curve if value >= entry.target), None)
    if record.diverged or not curve:
        return None
    if at == "best":
        number: float | None = (min if ".loss" in entry.metric else max)(value for _, value in curve)
    elif at == "last":
        number = curve[-1][1]
    else:
        number = dict(curve).get(int(at))
    return None if number is None else number * 100 if entry.percent else number
