"""Runs of a grid of experiments: the plan, the folders, the table over seeds."""

import json
import tomllib
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from rich.table import Table

from kedge.cli.actions.training import (
    Failure,
    existing_runs,
    read_document,
    seed_range,
    unfinished_runs,
    use_code_of,
)
from kedge.cli.output import console, print_json, print_line, print_notes
from kedge.config.document import parsed_settings
from kedge.config.experiment import Experiment, resolve
from kedge.config.grid import cells, varied_keys
from kedge.core.errors import RequestError
from kedge.report.runs import metric_of
from kedge.report.tables.comparison import comparison_table, row_of
from kedge.report.tables.matrix import metric_notes
from kedge.running.folders.folder import create
from kedge.running.folders.marker import SWEEP, Marker, planned_runs, read_marker
from kedge.running.folders.sources import CodeChoice, code_names, contents
from kedge.running.packs.grouping import groups
from kedge.running.requests import RunRequest


class SweepRun(NamedTuple):
    """A run of a sweep: its folder, relative to the sweep's, its experiment, and the settings of its cell."""

    folder: Path
    experiment: Experiment
    cell: dict[str, Any]

    @property
    def cell_name(self) -> str:
        """The folder of its cell."""
        return self.folder.parts[0]


def read_grid(file: str, sets: list[str], seed: int | None, chosen: Mapping[str, str]) -> dict[str, Any]:
    """An experiment's document. Raise if the command line sets a key that the grid varies."""
    document = read_document(file, sets, seed, **chosen)
    varied = varied_keys(document)
    keys = [*parsed_settings(sets), *(key.replace("_", ".") for key, value in chosen.items() if value)]
    conflicts = [key for key in keys if key in varied]
    if conflicts:
        raise RequestError(
            f"{conflicts[0]} is set on the command line, and the grid varies it. Change the list instead: "
            f"--set grid.{conflicts[0]}=[…]."
        )
    return document


def sweep_plan(document: dict[str, Any], seeds: int) -> list[SweepRun]:
    """The runs of a grid, one for each cell and seed. Raise if one of them is invalid."""
    return [
        SweepRun(Path(name) / f"seed{seed}", replace(experiment, seed=seed), cell)
        for name, cell, experiment in cells(document)
        for seed in seed_range(experiment, seeds)
    ]


def new_sweep(top: Path, plan: Sequence[SweepRun], force: bool, locks: ExitStack) -> list[RunRequest]:
    """Create the sweep's folder, which `locks` locks, and return the runs to start."""
    create_folder(top, plan, force, locks)
    return [RunRequest(top / run.folder, run.experiment) for run in plan]


def create_folder(top: Path, plan: Sequence[SweepRun], force: bool, locks: ExitStack | None = None) -> None:
    """Create the folder of a sweep, with the list of its runs; `locks` locks it."""
    runs = [{"folder": str(run.folder), "cell": run.cell, "config": run.experiment.toml()} for run in plan]
    code = contents([name for run in plan for name in code_names(run.experiment)])
    create(top, {SWEEP: json.dumps({"runs": runs}, indent=1), **code}, Marker("sweep"), force, locks)


def resume_sweep(top: Path, plan: Sequence[SweepRun], code: CodeChoice, locks: ExitStack) -> list[RunRequest]:
    """Lock the sweep's folder by `locks`, and return the unfinished runs."""
    return unfinished_runs(top, [(run.folder, run.experiment) for run in plan], locks, code)


def recorded_plan(top: Path, code: CodeChoice) -> list[SweepRun]:
    """The runs that the folder of a sweep lists."""
    if not (top / SWEEP).is_file():
        raise RequestError(f"--resume {top}: it contains no sweep: the file {SWEEP} is missing.")
    with use_code_of(top, code):
        read_marker(top)  # raises if a newer version wrote it
        return [
            SweepRun(Path(row["folder"]), resolve(tomllib.loads(row["config"])), row["cell"])
            for row in planned_runs(top)
        ]


def runs_by_cell(plan: Sequence[SweepRun]) -> dict[str, list[SweepRun]]:
    """The runs of each cell, by the cell's name."""
    found: dict[str, list[SweepRun]] = {}
    for run in plan:
        found.setdefault(run.cell_name, []).append(run)
    return found


def print_plan(plan: Sequence[SweepRun], as_json: bool) -> None:
    """Print the cells of a sweep as a table, or as JSON."""
    rows: list[dict[str, Any]] = [
        {
            "name": name,
            "cell": runs[0].cell,
            "method": runs[0].experiment.label,
            "rounds": runs[0].experiment.rounds,
            "seeds": [run.experiment.seed for run in runs],
        }
        for name, runs in runs_by_cell(plan).items()
    ]
    rounds = sum(run.experiment.rounds for run in plan)
    packs = len(groups([RunRequest(run.folder, run.experiment) for run in plan]))
    if as_json:
        print_json({"cells": rows, "runs": len(plan), "rounds": rounds, "groups": packs})
        return
    table = Table(header_style="bold", box=None, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column("cell", overflow="fold")
    for title in ("method", "rounds", "seeds"):
        table.add_column(title, justify="left" if title == "method" else "right")
    for row in rows:
        seeds = row["seeds"]
        span = f"{seeds[0]}–{seeds[-1]}" if len(seeds) > 1 else str(seeds[0])
        table.add_row(row["name"], row["method"], str(row["rounds"]), span)
    console().print(table)
    print_notes(
        [f"{len(rows)} cells, {len(plan)} runs, {rounds} rounds; {packs} groups that can train side by side"]
    )


def print_result(
    top: Path, plan: Sequence[SweepRun], failed: Sequence[Failure], target: float | None, as_json: bool
) -> None:
    """Print mean ± standard deviation over the seeds of each cell, as a table or as JSON."""
    rows = cell_rows(top, plan, target)
    if as_json:
        errors = [{"folder": str(failure.folder), "error": failure.error} for failure in failed]
        print_json({"folder": str(top), "cells": rows, "failed": errors})
        return
    console().print(comparison_table(rows, target, "cell"))
    print_notes(metric_notes(rows))
    print_line(f"\n{top}")


def cell_rows(top: Path, plan: Sequence[SweepRun], target: float | None) -> list[dict[str, Any]]:
    """A table row for each cell with a run that has started."""
    runs = existing_runs(top, [run.folder for run in plan])
    metric = metric_of(runs)
    rows = []
    for name, planned in runs_by_cell(plan).items():
        existing = [run for run in runs if run.folder.parent == top / name]
        if existing:
            row = row_of(existing, [], target, metric)
            complete = row["complete"] and len(existing) == len(planned)
            rows.append({**row, "method": name, "complete": complete, "cell": planned[0].cell})
    return rows
