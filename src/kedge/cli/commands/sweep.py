"""kedge sweep: a grid of experiments × seeds, trained at the same time, resumable cell by cell."""

from contextlib import ExitStack
from pathlib import Path
from typing import Annotated

import typer

from kedge.cli import completion
from kedge.cli.errors import report_errors
from kedge.cli.options import (
    AcceptChanged,
    Address,
    Debug,
    Device,
    EngineName,
    Force,
    Json,
    Out,
    Pack,
    PrecisionName,
    Quiet,
    ResumeSweep,
    Seed,
    Seeds,
    Sets,
    Target,
    UseStored,
    check_pack,
    check_target,
)
from kedge.core.errors import RequestError


@report_errors
def command(
    file: Annotated[
        str,
        typer.Argument(
            help="An experiment with a grid: a TOML file, or the name of a shipped one.",
            autocompletion=completion.experiments,
        ),
    ] = "",
    sets: Sets = [],  # noqa: B006
    seed: Seed = None,
    seeds: Seeds = 1,
    device: Device = "",
    engine: EngineName = "",
    address: Address = "",
    precision: PrecisionName = "",
    out: Out = None,
    resume_from: ResumeSweep = None,
    accept_changed_code: AcceptChanged = False,
    use_stored_code: UseStored = False,
    force: Force = False,
    pack: Pack = 0,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="List the cells; train nothing.")] = False,
    target: Target = None,
    quiet: Quiet = False,
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Run every combination of a grid's values, and print a table over seeds.

    Cells of one method train at the same time. --resume continues a sweep that was stopped: it skips finished
    cells, resumes cells that have started and repeats cells that failed.
    """
    from kedge.cli.actions import sweep as action
    from kedge.cli.actions.resumed_engine import on_engine
    from kedge.cli.actions.training import TrainingOptions, code_choice, train_runs

    check_target(target)
    check_pack(pack)
    code = code_choice(accept_changed_code, use_stored_code, resume_from)
    if resume_from:
        if file or sets or out or seed is not None or seeds != 1:
            raise RequestError(
                "--resume continues the sweep with its own settings: leave out FILE, --set, --seed, --seeds "
                "and --out."
            )
        top, plan = resume_from, action.recorded_plan(resume_from, code)
    else:
        if not file:
            raise RequestError("name an experiment with a table [grid], as in kedge sweep my.toml.")
        chosen = {
            "engine_device": device,
            "engine_name": engine,
            "engine_precision": precision,
            "engine_address": address,
        }
        document = action.read_grid(file, sets, seed, chosen)
        top, plan = out or Path("runs") / str(document["name"]), action.sweep_plan(document, seeds)
    if dry_run:
        action.print_plan(plan, as_json)
        return
    with ExitStack() as locks:
        if resume_from:
            requests = on_engine(action.resume_sweep(top, plan, code, locks), engine, address)
        else:
            requests = action.new_sweep(top, plan, force, locks)
        failed = train_runs(requests, top, TrainingOptions("sweep", pack, quiet or as_json, debug))
        if as_json or not quiet:
            action.print_result(top, plan, failed, target, as_json)
    if failed:
        raise typer.Exit(1)
