"""Runs of one experiment with several methods and seeds: the plan, the folders, the table."""

import json
import re
import tomllib
from collections.abc import Sequence
from contextlib import ExitStack
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from kedge.cli.actions.training import PlannedRun, seed_range, unfinished_runs, use_code_of
from kedge.cli.output import console, print_json, print_line, print_notes
from kedge.config.document import BY_METHOD, override, parsed_settings, with_method
from kedge.config.experiment import Experiment, resolve
from kedge.core.errors import RequestError
from kedge.report.plots.accuracy import accuracy_plot
from kedge.report.runs import Run
from kedge.report.tables.comparison import comparison, comparison_table
from kedge.report.tables.matrix import metric_notes
from kedge.running.execute import run_is_finished
from kedge.running.folders.folder import check_free, create
from kedge.running.folders.marker import PLAN, SWEEP, Marker, planned_runs, read_marker
from kedge.running.folders.sources import CodeChoice, code_names, contents
from kedge.running.requests import RunRequest


def check_methods(methods: str, sets: list[str]) -> None:
    """Raise if --set sets a table that --methods replaces: method, schedule or later stages."""
    replaced = [key for key in parsed_settings(sets) if key.partition(".")[0] in BY_METHOD]
    if methods and replaced:
        raise RequestError(
            f"--set {replaced[0]}=… has no effect, because --methods replaces method, schedule and "
            "later stages. Leave it out, and name a schedule as in --methods "
            "'fedbug(ratio=0.4)+feddyn(alpha=0.1)'."
        )


def run_plan(document: dict[str, Any], methods: str, seeds: int) -> list[PlannedRun]:
    """The runs of an experiment, one for each method and seed. Raise if one of them is invalid."""
    if "grid" in document:
        raise RequestError("grid: the experiment has a table [grid], so it is a sweep. Use kedge sweep.")
    # Commas inside parentheses separate arguments, the others methods.
    names: list[str | None] = [m.strip() for m in re.split(r",(?![^(]*\))", methods) if m.strip()] or [None]
    plan = []
    for name in names:
        variant = with_method(document, name) if name else document
        for seed in seed_range(resolve(variant), seeds):
            experiment = resolve(override(variant, {"seed": seed}))
            parts = [re.sub(r"[^\w.+-]+", "-", name).strip("-")] if name and len(names) > 1 else []
            parts += [f"seed{seed}"] if seeds > 1 else []
            plan.append(PlannedRun(Path(*parts), experiment))
    folders = [run.folder for run in plan]
    twice = {str(folder) for folder in folders if folders.count(folder) > 1}
    if twice:
        raise RequestError(f"--methods names the same run twice: {', '.join(sorted(twice))}.")
    return plan


def new_runs(top: Path, plan: Sequence[PlannedRun], force: bool, locks: ExitStack) -> list[RunRequest]:
    """Create the folder of several runs, which `locks` locks, and return the runs to start."""
    if [run.folder for run in plan] == [Path()]:
        check_free(top, force)
        return [RunRequest(top, plan[0].experiment, "replace" if force else "new")]
    create_folder(top, plan, force, locks)
    return [RunRequest(top / run.folder, run.experiment) for run in plan]


def create_folder(top: Path, plan: Sequence[PlannedRun], force: bool, locks: ExitStack | None = None) -> None:
    """Create the folder of several runs, with the list of them; `locks` locks it."""
    listed = [{"folder": str(run.folder), "config": run.experiment.toml()} for run in plan]
    code = contents([name for run in plan for name in code_names(run.experiment)])
    create(top, {PLAN: json.dumps(listed, indent=1), **code}, Marker("runs"), force, locks)


def resume_runs(top: Path, code: CodeChoice, locks: ExitStack) -> tuple[list[Path], list[RunRequest]]:
    """Lock `top` by `locks`; return the folders of all runs below it, and the unfinished runs."""
    check_no_sweep(top)
    with use_code_of(top, code):
        plan = recorded_plan(top)
    return [folder for folder, _ in plan], unfinished_runs(top, plan, locks, code)


def check_no_sweep(top: Path) -> None:
    """Raise if the folder `top` does not exist, or contains a sweep."""
    if not top.is_dir():
        raise RequestError(f"--resume {top}: no such folder.")
    if (top / SWEEP).is_file():
        raise RequestError(f"--resume {top}: it contains a sweep. Resume with: kedge sweep --resume {top}")
    read_marker(top)  # raises if a newer version wrote it


def recorded_plan(top: Path) -> list[tuple[Path, Experiment | None]]:
    """The runs of a folder; the experiment is None for a finished run, and for the only run of a folder."""
    listed = planned_runs(top)
    if not listed:
        return [(Path(), None)]
    return [
        (
            Path(row["folder"]),
            None if run_is_finished(top / row["folder"]) else resolve(tomllib.loads(row["config"])),
        )
        for row in listed
    ]


def print_result(runs: list[Run], top: Path, target: float | None, quiet: bool, as_json: bool) -> None:
    """Print the result as a table or as JSON; with several runs, plot their accuracy."""
    rows = comparison(runs, target)
    plot = None
    if len(runs) > 1 and has_matplotlib():
        plot = top / "accuracy.png"
        accuracy_plot(runs, plot, top.name)
    if as_json:
        print_json({"folder": str(top), "plot": plot and str(plot), "runs": rows})
    elif not quiet:
        console().print(comparison_table(rows, target))
        print_notes(metric_notes(rows))
        print_line(f"\n{top}" + (f"  plot: {plot}" if plot else ""))


def has_matplotlib() -> bool:
    """Whether matplotlib is installed."""
    return find_spec("matplotlib") is not None
