"""The printed table of a paper: [paper] in a shipped experiment, and the numbers in published/NAME.csv.

An experiment that reproduces a table has a [grid], whose cells are trained, and a table [paper]:

    [paper]
    title = "CIFAR-10: test accuracy in percent"
    source = "FedBug (Kao et al., 2023), Table 1"
    metric = "all.global.accuracy"    # the cell of the evaluation matrix that the paper reports
    runs = 4                          # number of runs the paper averaged; 0: unknown
    unavailable = ""                  # the reason if it cannot be measured here
    notes = ["…"]                     # disagreements of paper and code, and assumptions

    [[paper.claims]]
    says = "FedBug raises the accuracy of every method."
    rows = [["FedAvg + FedBug 40 %", "FedAvg"]]     # the first is above the second, in every column

Each line of the CSV is one printed number. `block`, `row` and `column` are the paper's own words; a block is
a table within the table and can be omitted. Columns that are keys of the config, such as `method`, select the
run. `metric`, `at` and `target` define how its history gives the number; the defaults are in [paper].
"""

import csv
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar

from pydantic import ConfigDict

from kedge.config.document import SHIPPED, read
from kedge.config.grid import Cell
from kedge.config.method_string import as_text
from kedge.config.schema import with_defaults
from kedge.core.errors import DataError, RequestError, nearest

PUBLISHED = SHIPPED / "published"
PRINTED = ("block", "row", "column", "value", "std", "metric", "at", "target")  # others: keys of the config
BOUND = re.compile(r"(>\d+|not reached)")  # values of a number of rounds that was not reached


@dataclass(frozen=True)
class Claim:
    """A statement of a paper as comparisons: the first of each pair is above the second (`lower`: below).

    Pairs of `rows` are compared in every column, or in the columns `within`. Pairs of `columns` are compared
    in every row, or in the rows `within`. Both are compared in every block, or in `blocks`.
    """

    __pydantic_config__: ClassVar[ConfigDict] = ConfigDict(extra="forbid")
    says: str
    rows: tuple[tuple[str, str], ...] = ()
    columns: tuple[tuple[str, str], ...] = ()
    within: tuple[str, ...] = ()
    blocks: tuple[str, ...] = ()
    lower: bool = False


@dataclass(frozen=True)
class Entry:
    """One printed number, and how to read the same number from a run's history.

    `at` is "last", "best", or a round. With a `target`, the number is the first round that reaches it.
    """

    block: str  # "" if the table has no blocks
    row: str
    column: str
    value: float | None  # None: not printed, or a bound
    std: float | None
    bound: str  # such as ">200", if the paper prints no number
    where: tuple[tuple[str, str], ...]  # keys of the config, and their values in TOML
    metric: str
    at: str
    target: float | None

    @property
    def percent(self) -> bool:
        """Whether the number is a fraction that is printed in percent."""
        return "accuracy" in self.metric and self.target is None

    def selects(self, settings: Mapping[str, Any]) -> bool:
        """Whether a cell of the grid with `settings` gives this number."""
        return all(as_text(settings.get(key)) == value for key, value in self.where)


@dataclass(frozen=True)
class Paper:
    """A published table, or a figure that is a sweep."""

    name: str
    title: str
    source: str
    metric: str
    at: str
    runs: int
    unavailable: str
    notes: tuple[str, ...]
    claims: tuple[Claim, ...]
    entries: tuple[Entry, ...]

    @cached_property
    def blocks(self) -> list[str]:
        """The names of the tables within the table, in the printed order; one empty name for none."""
        return list(dict.fromkeys(entry.block for entry in self.entries))

    @cached_property
    def rows(self) -> list[str]:
        """The names of the rows, in the printed order."""
        return list(dict.fromkeys(entry.row for entry in self.entries))

    @cached_property
    def columns(self) -> list[str]:
        """The names of the columns, in the printed order."""
        return list(dict.fromkeys(entry.column for entry in self.entries))

    @cached_property
    def places(self) -> dict[tuple[str, str, str], Entry]:
        """The entries by block, row and column."""
        return {(entry.block, entry.row, entry.column): entry for entry in self.entries}


def names() -> list[str]:
    """The names of the tables that can be reproduced."""
    return sorted(path.stem for path in SHIPPED.glob("*.toml") if "\n[paper]\n" in path.read_text())


def document_of(name: str) -> dict[str, Any]:
    """The document of an experiment with a table [paper]; raise if `name` has none."""
    known = names()
    if name not in known:
        raise RequestError(
            f"no table {name!r} to reproduce.{nearest(name, known)} There are: {', '.join(known)}."
        )
    return read(name)


def paper_of(document: Mapping[str, Any]) -> Paper:
    """The printed table, from the experiment's table [paper] and its CSV."""
    table = with_defaults(paper_table, document["paper"], "paper")
    claims = table.pop("claims")
    name = str(document["name"])
    paper = Paper(name, **table, claims=claims, entries=entries_of(name, table["metric"], table["at"]))
    if len(paper.places) < len(paper.entries):
        raise DataError(f"{PUBLISHED / name}.csv: two entries have the same block, row and column.")
    for claim in claims:
        check_claim(paper, claim)
    return paper


def paper_table(  # noqa: PLR0913  # one parameter for each key of the table
    title: str,
    source: str,
    metric: str,
    at: str = "last",
    runs: int = 0,
    unavailable: str = "",
    notes: tuple[str, ...] = (),
    claims: tuple[Claim, ...] = (),
) -> None:
    """The keys of the table [paper]."""


def entries_of(name: str, metric: str, at: str) -> tuple[Entry, ...]:
    """The printed numbers of a table; lines that begin with # are comments."""
    path = PUBLISHED / f"{name}.csv"
    lines = [line for line in path.read_text(encoding="utf-8").splitlines() if line and line[0] != "#"]
    entries = []
    for number, line in enumerate(csv.DictReader(lines, strict=True), 1):
        try:
            entries.append(entry_of(line, metric, at))
        except (KeyError, ValueError) as error:
            raise DataError(f"{path}, entry {number}: {error!r}.") from error
    return tuple(entries)


def entry_of(line: Mapping[str, str], metric: str, at: str) -> Entry:
    """The entry of a line of the CSV."""
    value = line["value"].strip()
    bound = value if BOUND.fullmatch(value) else ""
    target = line.get("target", "")
    return Entry(
        line.get("block", ""),
        line["row"],
        line["column"],
        float(value) if value and not bound else None,
        float(line["std"]) if line.get("std") else None,
        bound,
        tuple((key, text.strip()) for key, text in line.items() if key not in PRINTED and text.strip()),
        line.get("metric") or metric,
        line.get("at") or at,
        float(target) if target else None,
    )


def check_claim(paper: Paper, claim: Claim) -> None:
    """Raise if a claim names a row or a column that the table does not have."""
    for pairs, known, known_within in (
        (claim.rows, paper.rows, paper.columns),
        (claim.columns, paper.columns, paper.rows),
    ):
        wrong = [name for pair in pairs for name in pair if name not in known]
        wrong += [name for name in claim.within if pairs and name not in known_within]
        wrong += [name for name in claim.blocks if name not in paper.blocks]
        if wrong:
            suggestion = nearest(wrong[0], [*known, *known_within])
            raise DataError(f"{paper.name}, claim {claim.says!r}: no {wrong[0]!r}.{suggestion}")
    if bool(claim.rows) == bool(claim.columns):
        raise DataError(f"{paper.name}, claim {claim.says!r}: give either rows or columns.")


def cell_of(entry: Entry, cells: list[Cell]) -> Cell:
    """The cell of the grid that gives an entry's number."""
    selected = [cell for cell in cells if entry.selects(cell.settings)]
    if len(selected) != 1:
        raise DataError(
            f"{entry.row}, {entry.column}: {len(selected)} cells of the grid have "
            f"{', '.join(f'{key}={value}' for key, value in entry.where)}; one should."
        )
    return selected[0]
