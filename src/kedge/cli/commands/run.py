"""kedge run: one experiment, or the same with several methods and seeds."""

from contextlib import ExitStack
from pathlib import Path

import typer

from kedge.cli.errors import report_errors
from kedge.cli.options import (
    AcceptChanged,
    Address,
    Debug,
    Device,
    EngineName,
    Experiment,
    Force,
    Json,
    Methods,
    ModelName,
    Out,
    Pack,
    PrecisionName,
    Quiet,
    ResumeRun,
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
    experiment: Experiment = "",
    methods: Methods = "",
    model: ModelName = "",
    sets: Sets = [],  # noqa: B006
    seed: Seed = None,
    seeds: Seeds = 1,
    device: Device = "",
    engine: EngineName = "",
    precision: PrecisionName = "",
    address: Address = "",
    out: Out = None,
    resume_from: ResumeRun = None,
    accept_changed_code: AcceptChanged = False,
    use_stored_code: UseStored = False,
    force: Force = False,
    pack: Pack = 0,
    target: Target = None,
    quiet: Quiet = False,
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Run an experiment, with one or several methods and seeds, and print a table.

    A run that was stopped or killed resumes exactly with --resume. Several seeds of a method train at the
    same time (--pack).
    """
    from kedge.cli.actions import run as action
    from kedge.cli.actions.resumed_engine import on_engine
    from kedge.cli.actions.training import (
        TrainingOptions,
        code_choice,
        existing_runs,
        read_document,
        train_runs,
    )

    check_target(target)
    check_pack(pack)
    code = code_choice(accept_changed_code, use_stored_code, resume_from)
    with ExitStack() as locks:
        if resume_from:
            if experiment or methods or model or sets or out or seed is not None:
                raise RequestError(
                    "--resume continues the run with its own settings: "
                    "leave out the experiment, --methods, --model, --set, --seed and --out."
                )
            top = resume_from
            folders, resumed = action.resume_runs(top, code, locks)
            if engine and len(folders) == 1:
                raise RequestError(
                    f"--engine {engine}: a run that is resumed keeps the engine that it started with. Leave "
                    "--engine out."
                )
            requests = on_engine(resumed, engine, address)
        else:
            if not experiment:
                raise RequestError(
                    "name an experiment, as in kedge run quickstart or kedge run my.toml. "
                    "kedge list experiments prints the shipped ones."
                )
            action.check_methods(methods, sets)
            document = read_document(
                experiment, sets, seed,
                model=model, engine_device=device, engine_name=engine, engine_precision=precision,
                engine_address=address,
            )  # fmt: skip
            top = out or Path("runs") / str(document["name"])
            plan = action.run_plan(document, methods, seeds)
            requests, folders = action.new_runs(top, plan, force, locks), [run.folder for run in plan]
        options = TrainingOptions("run", pack, quiet or as_json, debug, single=len(folders) == 1)
        failed = train_runs(requests, top, options)
        action.print_result(existing_runs(top, folders), top, target, quiet, as_json)
    if failed:
        raise typer.Exit(failed[0].code)
