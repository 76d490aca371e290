"""The runs that a table needs at a scale, and the runs that are not recorded yet."""

import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, NamedTuple

from kedge.config.document import override
from kedge.config.experiment import Experiment
from kedge.config.grid import Cell, cells
from kedge.config.method_string import as_text
from kedge.core.errors import RequestError, nearest
from kedge.reproduce.paper import Paper, cell_of, document_of, paper_of
from kedge.reproduce.records import Record
from kedge.reproduce.scales import Scale, small, smoke
from kedge.running.folders.identity import digest, experiment_identity

# Keys that do not change the identity: seeds are separate, and a precision only changes the rounding.
IGNORED_KEYS = ("seed", "protocol", "engine.precision")
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
        """The key of the run's record."""
        return self.identity, self.experiment.seed

    @property
    def name(self) -> str:
        """Table, cell and seed."""
        return f"{self.table}: {self.cell.name}, seed {self.experiment.seed}"


def table_of(name: str, settings: Mapping[str, Any]) -> Table:
    """The table `name`, with `settings` for keys of the config that do not change its numbers."""
    document = document_of(name)
    table = Table(paper_of(document), cells(override(document, settings)))
    entries_by_cell(table)  # raises if a printed number belongs to no cell, or to several
    return table


def at_scale(cell: Cell, scale: Scale, synthetic: Path) -> Experiment:
    """The experiment of a cell at a scale; `synthetic` is the folder of synthetic data."""
    if scale == "smoke":
        return smoke(cell.experiment, synthetic)
    short = small(cell.experiment) if scale == "small" else cell.experiment
    return replace(short, checkpoint=replace(short.checkpoint, every=0))


def identity_of(experiment: Experiment) -> str:
    """The sha256 of everything that determines a run's numbers, except its seed."""
    identity = experiment_identity(experiment) | {"rounds": experiment.rounds}
    return digest({key: value for key, value in identity.items() if key not in IGNORED_KEYS})


def runs_of(table: Table, scale: Scale, seeds: Iterable[int], synthetic: Path) -> list[Run]:
    """The runs of all cells of a table with `seeds`."""
    found = []
    for cell in table.cells:
        experiment = at_scale(cell, scale, synthetic)
        identity = identity_of(experiment)
        found += [
            Run(table.paper.name, cell, replace(experiment, seed=experiment.seed + seed), scale, identity)
            for seed in seeds
        ]
    return found


def identities_of(table: Table, scale: Scale, synthetic: Path) -> dict[str, str]:
    """The identities of all cells at a scale, by the name of the cell."""
    return {cell.name: identity_of(at_scale(cell, scale, synthetic)) for cell in table.cells}


def missing_runs(runs: Iterable[Run], records: Iterable[Record]) -> list[Run]:
    """The distinct runs that have no record."""
    known = {record.key for record in records}
    found: dict[tuple[str, int], Run] = {}
    for run in runs:
        if run.key not in known:
            found.setdefault(run.key, run)
    return list(found.values())


def one_run_per_program(runs: Iterable[Run]) -> list[Run]:
    """One run for each method, schedule and model; methods that differ only in numbers count once."""
    found: dict[str, Run] = {}
    for run in runs:
        stages = [(method, schedule, rule) for method, schedule, _, rule in run.experiment.stages]
        found.setdefault(json.dumps([run.experiment.model, without_numbers(stages)], sort_keys=True), run)
    return list(found.values())


def without_numbers(value: Any) -> Any:
    """A value of a config in which every number is None."""
    if isinstance(value, Mapping):
        return {key: without_numbers(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [without_numbers(inner) for inner in value]
    return None if isinstance(value, int | float) and not isinstance(value, bool) else value


def select_cells(table: Table, filters: Sequence[str]) -> Table:
    """The table with only the cells that match all `filters` KEY=VALUE."""
    patterns = [parse_filter(text, table) for text in filters]
    entries = entries_by_cell(table)
    selected = [
        cell for cell in table.cells if all(is_selected(cell, entries, key, text) for key, text in patterns)
    ]
    if not selected:
        raise RequestError(f"--cells {' '.join(filters)}: no cell of {table.paper.name} is selected.")
    return table._replace(cells=selected)


def parse_filter(text: str, table: Table) -> tuple[str, str]:
    """Key and pattern of a filter."""
    key, sign, pattern = text.partition("=")
    known = [*table.cells[0].settings, *PRINTED]
    if not sign or key.strip() not in known:
        raise RequestError(
            f"--cells {text!r}: need KEY=VALUE, where * and ? in VALUE stand for any characters, and KEY is "
            f"one of {', '.join(known)}.{nearest(key.strip(), known)}"
        )
    return key.strip(), pattern.strip()


def entries_by_cell(table: Table) -> dict[str, list[Any]]:
    """The printed numbers of every cell, by name of the cell."""
    found: dict[str, list[Any]] = {}
    for entry in table.paper.entries:
        found.setdefault(cell_of(entry, table.cells).name, []).append(entry)
    return found


def is_selected(cell: Cell, entries: Mapping[str, Collection[Any]], key: str, pattern: str) -> bool:
    """Whether the setting `key` of a cell, or this name of one of its `entries`, matches `pattern`."""
    if key in PRINTED:
        texts = [getattr(entry, key) for entry in entries.get(cell.name, ())]
    else:
        texts = [as_text(cell.settings[key])]
    # In a pattern only * and ? are special.
    return any(fnmatchcase(text, pattern.replace("[", "[[]")) for text in texts)
