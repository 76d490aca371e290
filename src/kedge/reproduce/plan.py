"""Which runs a table needs at a scale, and which of them are recorded already."""

import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, NamedTuple

from kedge.config.document import override, written
from kedge.config.experiment import Experiment
from kedge.config.grid import Cell, cells
from kedge.core.errors import RequestError, nearest
from kedge.reproduce.paper import Paper, cell_of, document_of, paper_of
from kedge.reproduce.records import Record
from kedge.reproduce.shortened import Scale, small, smoke
from kedge.running.folders.identity import digest, experiment_identity

# Keys that do not make another run of a table: seeds are counted, and a precision is a matter of rounding.
BESIDE = ("seed", "protocol", "engine.precision")
PRINTED = ("block", "row", "column")


class Table(NamedTuple):
    """A published table, with the cells of its grid."""

    paper: Paper
    cells: list[Cell]


class Run(NamedTuple):
    """A run to be trained for a table."""

    table: str
    cell: Cell
    experiment: Experiment  # at its scale, with its seed
    scale: Scale
    identity: str

    @property
    def key(self) -> tuple[str, int]:
        """What makes two runs the same."""
        return self.identity, self.experiment.seed

    @property
    def name(self) -> str:
        """The run in words."""
        return f"{self.table}: {self.cell.name}, seed {self.experiment.seed}"


def table_of(name: str, settings: Mapping[str, Any]) -> Table:
    """The table of that name; `settings` are keys of the config that change none of its numbers."""
    document = document_of(name)
    table = Table(paper_of(document), cells(override(document, settings)))
    printed_at(table)  # raises if a printed number belongs to no cell, or to several
    return table


def at_scale(cell: Cell, scale: Scale, made: Path) -> Experiment:
    """The experiment of a cell at a scale; `made` is the folder of made data."""
    if scale == "smoke":
        return smoke(cell.experiment, made)
    short = small(cell.experiment) if scale == "small" else cell.experiment
    return replace(short, checkpoint=replace(short.checkpoint, every=0))


def identity_of(experiment: Experiment) -> str:
    """The sha256 of all that determines a run's numbers, without its seed."""
    found = experiment_identity(experiment) | {"rounds": experiment.rounds}
    return digest({key: value for key, value in found.items() if key not in BESIDE})


def runs_of(table: Table, scale: Scale, seeds: Iterable[int], made: Path) -> list[Run]:
    """The runs of all cells of a table with these seeds."""
    found = []
    for cell in table.cells:
        experiment = at_scale(cell, scale, made)
        identity = identity_of(experiment)
        found += [
            Run(table.paper.name, cell, replace(experiment, seed=experiment.seed + seed), scale, identity)
            for seed in seeds
        ]
    return found


def identities_of(table: Table, scale: Scale, made: Path) -> dict[str, str]:
    """The identities of all cells at a scale, by the name of the cell."""
    return {cell.name: identity_of(at_scale(cell, scale, made)) for cell in table.cells}


def to_train(runs: Iterable[Run], records: Iterable[Record]) -> list[Run]:
    """The runs without those that are recorded, each once."""
    known = {record.key for record in records}
    found: dict[tuple[str, int], Run] = {}
    for run in runs:
        if run.key not in known:
            found.setdefault(run.key, run)
    return list(found.values())


def distinct(runs: Iterable[Run]) -> list[Run]:
    """One run for each method, schedule and model."""
    found: dict[str, Run] = {}
    for run in runs:
        stages = [(method, schedule, rule) for method, schedule, _, rule in run.experiment.stages]
        found.setdefault(json.dumps([run.experiment.model, stages], sort_keys=True), run)
    return list(found.values())


def selected(table: Table, filters: Sequence[str]) -> Table:
    """The table with those cells only that all filters KEY=VALUE select."""
    wanted = [parsed_filter(text, table) for text in filters]
    where = printed_at(table)
    found = [cell for cell in table.cells if all(is_selected(cell, where, *one) for one in wanted)]
    if not found:
        raise RequestError(f"--cells {' '.join(filters)}: no cell of {table.paper.name} is selected.")
    return table._replace(cells=found)


def parsed_filter(text: str, table: Table) -> tuple[str, str]:
    """Key and pattern of a filter."""
    key, sign, pattern = text.partition("=")
    known = [*table.cells[0].settings, *PRINTED]
    if not sign or key.strip() not in known:
        raise RequestError(
            f"--cells {text!r}: need KEY=VALUE, where * and ? in VALUE stand for any characters, and KEY is "
            f"one of {', '.join(known)}.{nearest(key.strip(), known)}"
        )
    return key.strip(), pattern.strip()


def printed_at(table: Table) -> dict[str, list[Any]]:
    """The printed numbers of every cell, by the name of the cell."""
    found: dict[str, list[Any]] = {}
    for entry in table.paper.entries:
        found.setdefault(cell_of(entry, table.cells).name, []).append(entry)
    return found


def is_selected(cell: Cell, where: Mapping[str, Collection[Any]], key: str, pattern: str) -> bool:
    """Whether a cell has a setting, or gives a printed number, of that kind; only * and ? are special."""
    if key in PRINTED:
        texts = [getattr(entry, key) for entry in where.get(cell.name, ())]
    else:
        texts = [written(cell.settings[key])]
    return any(fnmatchcase(text, pattern.replace("[", "[[]")) for text in texts)
