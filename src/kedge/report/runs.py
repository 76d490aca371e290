"""The files of runs on disk, and groups of runs that differ only in the seed."""

import json
import tomllib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from kedge.core.errors import DataError, RequestError, nearest
from kedge.measure.cells import cell_names, curve, matrix_order
from kedge.running.folders.folder import read_lines
from kedge.running.folders.marker import planned_runs, read_marker

IGNORED_KEYS = ("seed", "engine", "name", "measure")  # keys in which runs of one group may differ
ACCURACIES = ("distributed.global.accuracy", "distributed.local.accuracy")


@dataclass(frozen=True, eq=False)
class Run:
    """One run's files."""

    folder: Path
    config: dict[str, Any]
    history: list[dict[str, Any]]

    @property
    def label(self) -> str:
        """The methods of all stages, joined by '->'."""
        stages = dict.fromkeys(str(line["method"]) for line in self.history)
        return "->".join(stages) or self.folder.name

    @property
    def complete(self) -> bool:
        """Whether all rounds are done."""
        return len(self.history) >= int(self.config.get("rounds", 0)) and not self.diverged

    @property
    def diverged(self) -> bool:
        """Whether the run ended because numbers were not finite."""
        return bool(self.history and self.history[-1].get("diverged"))

    @cached_property
    def accuracies(self) -> list[str]:
        """The accuracies among the cells of the evaluation matrix."""
        return [name for name in cell_names(self.history) if ".accuracy" in name]

    @cached_property
    def last_evaluation(self) -> int:
        """The last round with accuracies, or 0."""
        return max((round for name in self.accuracies for round, _ in self.curve(name)), default=0)

    def curve(self, metric: str | None) -> list[tuple[int, float]]:
        """(round, value) of a metric in the rounds that measured it; empty for None."""
        return curve(self.history, metric) if metric else []


def read_run(folder: Path) -> Run:
    """The run in a folder."""
    read_marker(folder)  # raises if a newer version wrote it
    try:
        config = tomllib.loads((folder / "config.toml").read_text())
        return Run(folder, config, read_lines(folder / "history.jsonl"))
    except (tomllib.TOMLDecodeError, json.JSONDecodeError) as error:
        raise DataError(f"{folder} cannot be read: {error}.") from error


def find_runs(folders: Iterable[Path]) -> list[Run]:
    """The runs in `folders` and in all folders below them."""
    found: list[Run] = []
    for folder in folders:
        if not folder.is_dir():
            raise RequestError(f"{folder}: no such folder.")
        inside = sorted(p.parent for p in folder.rglob("config.toml"))
        if not inside:
            raise RequestError(f"{folder} contains no run: there is no config.toml in it or below it.")
        order = [folder / row["folder"] for row in planned_runs(folder)]
        inside.sort(key=lambda p: order.index(p) if p in order else len(order))
        found += [read_run(p) for p in inside]
    return found


def metric_of(runs: Sequence[Run], requested: str | None = None) -> str | None:
    """The accuracy by which runs are compared: `requested`, or the first of ACCURACIES that all runs have."""
    by_run = [run.accuracies for run in runs if run.history]
    available = matrix_order(name for names in by_run for name in names)
    if requested is None:
        common = [name for name in ACCURACIES if all(name in names for names in by_run)]
        return next((name for name in (*common, *ACCURACIES) if name in available), None)
    if requested not in available:
        raise RequestError(
            f"--metric {requested}: no run here has it.{nearest(requested, available)} "
            f"There are: {', '.join(available) or 'none'}."
        )
    return requested


def seed_groups(runs: Iterable[Run]) -> list[list[Run]]:
    """The runs in groups that differ only in IGNORED_KEYS, in the order of their first runs."""
    groups: dict[str, list[Run]] = {}
    for run in runs:
        key = json.dumps({k: v for k, v in run.config.items() if k not in IGNORED_KEYS}, sort_keys=True)
        groups.setdefault(key, []).append(run)
    return list(groups.values())
