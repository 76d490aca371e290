"""kedge run: one experiment, or the same with several methods and seeds."""

import json
import re
import tomllib
from collections.abc import Sequence
from contextlib import ExitStack
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any

import typer

from kedge.cli.options import Debug, Json, check_target, console, guarded, notes, show
from kedge.cli.runs import (
    AcceptChanged,
    Device,
    EngineName,
    Force,
    Out,
    Pack,
    Planned,
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
from kedge.config.document import BY_METHOD, override, settings, with_method
from kedge.config.experiment import Experiment, resolve
from kedge.core.errors import RequestError
from kedge.report.plots.accuracy import accuracy_plot
from kedge.report.runs import Run
from kedge.report.tables.comparison import comparison, comparison_table
from kedge.report.tables.matrix import metric_notes
from kedge.running.execute import run_is_finished
from kedge.running.folders.folder import check_free, create
from kedge.running.folders.marker import PLAN, SWEEP, Marker, planned_runs, read_marker
from kedge.running.folders.sources import contents, own_names
from kedge.running.requests import RunRequest


@guarded
def command(
    experiment: Annotated[str, typer.Argument(help="A TOML file, or a shipped experiment by name.")] = "",
    methods: Annotated[
        str,
        typer.Option(
            "--methods",
            "-m",
            help="Methods to compare: 'fedavg, feddyn(alpha=0.1), fedbug+feddyn'. One run each. Each names "
            "its schedule and later stages too: the experiment's own [schedule] and [[then]] are left out.",
        ),
    ] = "",
    model: Annotated[
        str, typer.Option(help="The network: a name with arguments, or your own: my_file.py:factory.")
    ] = "",
    sets: Sets = [],  # noqa: B006
    seed: Seed = None,
    seeds: Seeds = 1,
    device: Device = "",
    engine: EngineName = "",
    precision: PrecisionName = "",
    out: Out = None,
    resume_from: Annotated[
        Path | None, typer.Option("--resume", help="Go on with the run, or the runs, in this folder.")
    ] = None,
    accept_changed_code: AcceptChanged = False,
    use_stored_code: UseStored = False,
    force: Force = False,
    pack: Pack = 0,
    target: Target = None,
    quiet: Quiet = False,
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Run an experiment: progress, then a table. A run that was stopped or killed resumes exactly.

    Several seeds of a method train side by side (--pack).
    """
    check_target(target)
    check_pack(pack)
    code = chosen_code(accept_changed_code, use_stored_code, resume_from)
    plan: Sequence[tuple[Path, Experiment | None]]
    fresh: list[Planned] = []
    if resume_from:
        if experiment or methods or model or sets or out or seed is not None:
            raise RequestError(
                "--resume takes the run as it was begun: "
                "leave experiment, --methods, --model, --set, --seed and --out out."
            )
        check_holds_no_sweep(resume_from)
        with use_code_of(resume_from, code):
            plan, top = planned(resume_from), resume_from
    else:
        if not experiment:
            raise RequestError(
                "name an experiment: kedge run quickstart, or kedge run my.toml (kedge list experiments)."
            )
        check_methods(methods, sets)
        document = document_of(
            experiment, sets, seed,
            model=model, engine_device=device, engine_name=engine, engine_precision=precision,
        )  # fmt: skip
        top = out or Path("runs") / str(document["name"])
        plan = fresh = variants(document, methods, seeds)
    with ExitStack() as locks:
        members = make_members(top, fresh, force, locks) if fresh else to_go_on(top, plan, locks, code)
        failed = carried_out(members, top, "run", pack, quiet or as_json, debug, single=len(plan) == 1)
        tell(there(top, plan), top, target, quiet, as_json)
    if failed:
        raise typer.Exit(failed[0].code)


def check_methods(methods: str, sets: list[str]) -> None:
    """Raise if --set sets a table that --methods replaces: method, schedule or later stages."""
    lost = [key for key in settings(sets) if key.partition(".")[0] in BY_METHOD]
    if methods and lost:
        raise RequestError(
            f"--set {lost[0]}=… has no effect, because --methods replaces method, schedule and later stages. "
            f"Leave it out, and name a schedule as in --methods 'fedbug(ratio=0.4)+feddyn(alpha=0.1)'."
        )


def variants(document: dict[str, Any], methods: str, seeds: int) -> list[Planned]:
    """The runs asked for: folder below the top, and the experiment; all checked before the first begins."""
    if "grid" in document:
        raise RequestError("grid: the experiment has a table [grid], so it is a sweep. Use kedge sweep.")
    # Commas inside parentheses separate arguments, the others methods.
    names: list[str | None] = [m.strip() for m in re.split(r",(?![^(]*\))", methods) if m.strip()] or [None]
    plan = []
    for name in names:
        chosen = with_method(document, name) if name else document
        for number in seeds_of(resolve(chosen), seeds):
            own = resolve(override(chosen, {"seed": number}))
            parts = [re.sub(r"[^\w.+-]+", "-", name).strip("-")] if name and len(names) > 1 else []
            parts += [f"seed{own.seed}"] if seeds > 1 else []
            plan.append(Planned(Path(*parts), own))
    twice = {str(p) for p, _ in plan if [q for q, _ in plan].count(p) > 1}
    if twice:
        raise RequestError(f"--methods names the same run twice: {', '.join(sorted(twice))}.")
    return plan


def make_members(top: Path, plan: list[Planned], force: bool, locks: ExitStack) -> list[RunRequest]:
    """The runs to start; make the folder of several runs, locked by `locks`."""
    if [folder for folder, _ in plan] == [Path()]:
        check_free(top, force)
        return [RunRequest(top, plan[0].experiment, "replace" if force else "new")]
    prepare(top, plan, force, locks)
    return [RunRequest(top / folder, own) for folder, own in plan]


def prepare(top: Path, plan: list[Planned], force: bool, locks: ExitStack | None = None) -> None:
    """Make the folder of several runs with the list of them; `locks` locks it."""
    listed = [{"folder": str(folder), "config": experiment.toml()} for folder, experiment in plan]
    code = contents([name for _, experiment in plan for name in own_names(experiment)])
    create(top, {PLAN: json.dumps(listed, indent=1), **code}, Marker("runs"), force, locks)


def check_holds_no_sweep(top: Path) -> None:
    """Raise if a folder does not exist, or contains a sweep."""
    if not top.is_dir():
        raise RequestError(f"--resume {top}: no such folder.")
    if (top / SWEEP).is_file():
        raise RequestError(f"--resume {top}: it holds a sweep. Go on with kedge sweep --resume {top}.")
    read_marker(top)  # raises if a newer version wrote it


def planned(top: Path) -> list[tuple[Path, Experiment | None]]:
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


def tell(runs: list[Run], top: Path, target: float | None, quiet: bool, as_json: bool) -> None:
    """The result: a table and, for several runs, a plot; or JSON."""
    rows = comparison(runs, target)
    plot = None
    if len(runs) > 1 and plottable():
        plot = top / "accuracy.png"
        accuracy_plot(runs, plot, top.name)
    if as_json:
        show({"folder": str(top), "plot": plot and str(plot), "runs": rows})
    elif not quiet:
        console().print(comparison_table(rows, target))
        notes(metric_notes(rows))
        console().print(f"\n{top}" + (f"  plot: {plot}" if plot else ""), highlight=False, soft_wrap=True)


def plottable() -> bool:
    """Whether matplotlib is installed."""
    return find_spec("matplotlib") is not None
