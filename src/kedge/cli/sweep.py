"""kedge sweep: a grid of experiments × seeds, side by side on the device, resumable cell by cell."""

import json
import tomllib
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import typer
from rich.table import Table

from kedge.cli.options import Debug, Json, check_target, console, guarded, notes, show
from kedge.cli.runs import (
    AcceptChanged,
    Device,
    EngineName,
    Failure,
    Force,
    Out,
    Pack,
    PrecisionName,
    Quiet,
    Seed,
    Seeds,
    Sets,
    Target,
    UseStored,
    carried_out,
    check_pack,
    chosen_code,
    document_of,
    seeds_of,
    there,
    to_go_on,
    use_code_of,
)
from kedge.config.document import settings
from kedge.config.experiment import Experiment, resolve
from kedge.config.grid import cells, varied_keys
from kedge.core.errors import RequestError
from kedge.report.runs import metric_of
from kedge.report.tables.comparison import comparison_table, row_of
from kedge.report.tables.matrix import metric_notes
from kedge.running.folders.folder import create
from kedge.running.folders.marker import SWEEP, Marker, planned_runs, read_marker
from kedge.running.folders.sources import contents, own_names
from kedge.running.packs.grouping import groups
from kedge.running.requests import RunRequest


class Place(NamedTuple):
    """A run of a sweep: its folder below the top, what it is, and the settings of its cell."""

    folder: Path
    experiment: Experiment
    cell: dict[str, Any]


@guarded
def command(
    file: Annotated[
        str, typer.Argument(help="An experiment with a table [grid]: a TOML file, or a shipped one by name.")
    ] = "",
    sets: Sets = [],  # noqa: B006
    seed: Seed = None,
    seeds: Seeds = 1,
    device: Device = "",
    engine: EngineName = "",
    precision: PrecisionName = "",
    out: Out = None,
    resume_from: Annotated[
        Path | None, typer.Option("--resume", help="Go on with the sweep in this folder.")
    ] = None,
    accept_changed_code: AcceptChanged = False,
    use_stored_code: UseStored = False,
    force: Force = False,
    pack: Pack = 0,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show the cells, and run nothing.")] = False,
    target: Target = None,
    quiet: Quiet = False,
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Run every combination of a grid's values: progress, then a table over seeds.

    Cells of one method train side by side. A sweep that was stopped goes on with --resume: finished cells are
    left, others go on, failed ones are tried again.
    """
    check_target(target)
    check_pack(pack)
    code = chosen_code(accept_changed_code, use_stored_code, resume_from)
    if resume_from:
        if file or sets or out or seed is not None or seeds != 1:
            raise RequestError(
                "--resume takes the sweep as it was begun: leave FILE, --set, --seed, --seeds and --out out."
            )
        with use_code_of(resume_from, code):
            top, plan = resume_from, planned(resume_from)
    else:
        if not file:
            raise RequestError("name an experiment with a table [grid]: kedge sweep my.toml.")
        chosen = {"engine_device": device, "engine_name": engine, "engine_precision": precision}
        document = document_of(file, sets, seed, **chosen)
        check_apart(document, [*settings(sets), *(k.replace("_", ".") for k, v in chosen.items() if v)])
        top, plan = out or Path("runs") / str(document["name"]), spread(document, seeds)
    if dry_run:
        tell_plan(plan, as_json)
        return
    with ExitStack() as locks:
        if resume_from:
            members = to_go_on(top, [(place.folder, place.experiment) for place in plan], locks, code)
        else:
            prepare(top, plan, force, locks)
            members = [RunRequest(top / place.folder, place.experiment) for place in plan]
        failed = carried_out(members, top, "sweep", pack, quiet or as_json, debug)
        tell(top, plan, failed, target, quiet, as_json)
    if failed:
        raise typer.Exit(1)


def check_apart(document: dict[str, Any], given: Sequence[str]) -> None:
    """Raise where the command line sets what the grid varies."""
    both = [key for key in given if key in varied_keys(document)]
    if both:
        raise RequestError(
            f"{both[0]} is set, and the grid varies it. Change the list instead: --set grid.{both[0]}=[…]."
        )


def spread(document: dict[str, Any], seeds: int) -> list[Place]:
    """Every cell with every seed; all checked before the first begins."""
    plan = []
    for name, own, experiment in cells(document):
        for seed in seeds_of(experiment, seeds):
            one = replace(experiment, seed=seed)
            plan.append(Place(Path(name) / f"seed{seed}", one, own))
    return plan


def prepare(top: Path, plan: Sequence[Place], force: bool, locks: ExitStack | None = None) -> None:
    """Make the folder of a sweep with the list of its runs; `locks` locks it."""
    runs = [
        {"folder": str(place.folder), "cell": place.cell, "config": place.experiment.toml()} for place in plan
    ]
    code = contents([name for place in plan for name in own_names(place.experiment)])
    create(top, {SWEEP: json.dumps({"runs": runs}, indent=1), **code}, Marker("sweep"), force, locks)


def planned(top: Path) -> list[Place]:
    """The runs that the folder of a sweep holds or should hold."""
    if not (top / SWEEP).is_file():
        raise RequestError(f"--resume {top}: no sweep lies there; it would have a file {SWEEP}.")
    read_marker(top)  # raises if a newer version wrote it
    return [
        Place(Path(row["folder"]), resolve(tomllib.loads(row["config"])), row["cell"])
        for row in planned_runs(top)
    ]


def by_cell(plan: Sequence[Place]) -> dict[str, list[Place]]:
    """The runs of every cell, by its name."""
    found: dict[str, list[Place]] = {}
    for place in plan:
        found.setdefault(place.folder.parts[0], []).append(place)
    return found


def tell_plan(plan: Sequence[Place], as_json: bool) -> None:
    """What would be run."""
    rows: list[dict[str, Any]] = [
        {
            "name": name,
            "cell": own[0].cell,
            "method": own[0].experiment.label,
            "rounds": own[0].experiment.rounds,
            "seeds": [place.experiment.seed for place in own],
        }
        for name, own in by_cell(plan).items()
    ]
    rounds = sum(place.experiment.rounds for place in plan)
    kinds = len(groups([RunRequest(place.folder, place.experiment) for place in plan]))
    if as_json:
        show({"cells": rows, "runs": len(plan), "rounds": rounds, "groups": kinds})
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
    notes(
        [f"{len(rows)} cells, {len(plan)} runs, {rounds} rounds; {kinds} groups that can train side by side"]
    )


def tell(
    top: Path,
    plan: Sequence[Place],
    failed: Sequence[Failure],
    target: float | None,
    quiet: bool,
    as_json: bool,
) -> None:
    """The result: mean ± standard deviation over the seeds of every cell."""
    runs = there(top, [(place.folder, place.experiment) for place in plan])
    metric = metric_of(runs)
    rows = []
    for name, own in by_cell(plan).items():
        some = [run for run in runs if run.folder.parent == top / name]
        if some:
            row = row_of(some, [], target, metric)
            complete = row["complete"] and len(some) == len(own)
            rows.append({**row, "method": name, "complete": complete, "cell": own[0].cell})
    if as_json:
        lost = [{"folder": str(one.folder), "error": one.error} for one in failed]
        show({"folder": str(top), "cells": rows, "failed": lost})
    elif not quiet:
        console().print(comparison_table(rows, target, "cell"))
        notes(metric_notes(rows))
        console().print(f"\n{top}", highlight=False, soft_wrap=True)
