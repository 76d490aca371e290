"""Small published tables and invented runs of their cells."""

from collections.abc import Mapping
from functools import cache
from typing import Any

from kedge.config.grid import Cell, cells
from kedge.reproduce.measured import Measured, measured_table
from kedge.reproduce.paper import Claim, Entry, Paper, document_of, paper_of
from kedge.reproduce.records import Record, Sitting

ACCURACY = "all.global.accuracy"
SITTING = Sitting(
    "2025-03-01T10:00:00Z", "kedge reproduce fedbug-table1 --seeds 3", "NVIDIA H200", "0.9", "2.11"
)
Values = Mapping[tuple[str, str], float | Mapping[int, float | None] | None]


def an_entry(row: str, column: str, value: float | None, **others: Any) -> Entry:
    """A printed accuracy of a table without blocks; its cell is named row/column."""
    given: dict[str, Any] = {
        "block": "",
        "std": None,
        "bound": "",
        "metric": ACCURACY,
        "at": "last",
        "target": None,
    }
    return Entry(row=row, column=column, value=value, where=(("key", f"{row}/{column}"),), **given | others)


def a_paper(entries: list[Entry], claims: tuple[Claim, ...] = (), name: str = "small") -> Paper:
    return Paper(
        name, "A small table", "Someone (2020), Table 1", ACCURACY, "last", 3, "", ("A note.",), claims,
        tuple(entries),
    )  # fmt: skip


def grid_of(paper: Paper) -> list[Cell]:
    """A cell for each key; only the rounds of its experiment are read, so any experiment will do."""
    experiment = cells(document_of("fedbug-table1"))[0].experiment
    keys = dict.fromkeys(entry.where[0][1] for entry in paper.entries)
    return [Cell(key, {"key": key}, experiment) for key in keys]


def a_record(identity: str, seed: int, curve: list[tuple[int, float]], **others: Any) -> Record:
    given: dict[str, Any] = {
        "table": "small", "cell": {}, "precision": "fp32", "scale": "full", "rounds": 300, "samples": 1000,
        "elapsed": 60.0 * (seed + 1), "sitting": SITTING, "history": {ACCURACY: curve},
    }  # fmt: skip
    return Record(identity=identity, seed=seed, **given | others)


def measured_with(paper: Paper, records: list[Record], scale: str = "full", **others: Any) -> Measured:
    """The table measured by records; the identity of a record is "of " and the name of its cell."""
    every = grid_of(paper)
    return measured_table(
        paper, every, records, scale, {one.name: f"of {one.name}" for one in every}, **others
    )


@cache
def fedbug(seeds: int = 3, places: int = 80, shift: float = -0.2) -> Measured:
    """FedBug's Table 1, its first `places` with invented runs near the print; the noise is not random."""
    document = document_of("fedbug-table1")
    paper, every = paper_of(document), cells(document)
    by_name = {cell.name: cell for cell in every}
    identities = {name: f"of {name}" for name in by_name}
    records = []
    for number, entry in enumerate(paper.entries[:places]):
        (name,) = [name for name, cell in by_name.items() if entry.selects(cell.settings)]
        for seed in range(seeds):
            noise = 0.3 * ((number * 7 + seed * 5) % 11 - 5) / 5
            value = round(((entry.value or 0) + shift + noise) / 100, 6)
            records.append(a_record(identities[name], seed, [(10, 0.3), (300, value)]))
    return measured_table(paper, every, records, "full", identities)
