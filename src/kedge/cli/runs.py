"""Shared by `kedge run` and `kedge sweep`: options, training the runs, interruptions, failed runs."""

import os
import sys
from collections.abc import Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from functools import partial
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import typer

from kedge.cli.options import CODES, say
from kedge.cli.signals import INTERRUPTED, stoppable
from kedge.config.document import override, read, settings
from kedge.config.experiment import Experiment
from kedge.core.errors import RequestError
from kedge.report.runs import Run, read_run
from kedge.running.execute import read_experiment, run_is_finished
from kedge.running.folders.folder import locked
from kedge.running.folders.marker import planned_runs
from kedge.running.folders.resumed_code import update_record, use_code
from kedge.running.folders.sources import CodeChoice
from kedge.running.progress import Abandoned, Interrupted
from kedge.running.requests import Outcome, RunRequest
from kedge.running.several_runs import run_all

Sets = Annotated[list[str], typer.Option("--set", help="Any key of the config: --set training.epochs=5.")]
Seed = Annotated[int | None, typer.Option(help="The random seed.")]
Seeds = Annotated[int, typer.Option(help="How many seeds, counted up from --seed.")]
Device = Annotated[str, typer.Option(help="auto, cpu or cuda.")]
EngineName = Annotated[str, typer.Option("--engine", help="auto, sequential, stacked or captured (CUDA).")]
PrecisionName = Annotated[str, typer.Option("--precision", help="fp64, fp32, tf32 (CUDA) or bf16.")]
Out = Annotated[Path | None, typer.Option(help="The folder to write; by default runs/NAME.")]
Force = Annotated[
    bool,
    typer.Option("--force", help="Replace the folder if it exists and contains only files that kedge wrote."),
]
Target = Annotated[float | None, typer.Option(help="Show the rounds to this accuracy, a share: 0.9.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="No progress bar, no table.")]
Pack = Annotated[
    int,
    typer.Option(help="Runs that train at once, at most; 1: one after another; 0: as many as pay and fit."),
]
AcceptChanged = Annotated[
    bool,
    typer.Option(
        "--accept-changed-code", help="With --resume: execute your own files even if they have changed."
    ),
]
UseStored = Annotated[
    bool,
    typer.Option(
        "--use-stored-code",
        help="With --resume: execute the copies of your own files in the run's folder.",
    ),
]

NAMED = 8  # finished runs that are named one by one


class Planned(NamedTuple):
    """A run of several: its folder below the top, and what it is."""

    folder: Path
    experiment: Experiment


class Failure(NamedTuple):
    """A run that failed, and the exit code of its error."""

    folder: Path
    error: str
    code: int


def document_of(experiment: str, sets: list[str], seed: int | None, **chosen: str) -> dict[str, Any]:
    """The document with what the command line says set: keys of `chosen` have _ for a dot."""
    given = {key.replace("_", "."): value for key, value in chosen.items() if value}
    return override(read(experiment), given | settings(sets) | ({} if seed is None else {"seed": seed}))


def seeds_of(experiment: Experiment, count: int) -> range:
    """The seeds counted up from an experiment's."""
    if count < 1:
        raise RequestError(f"--seeds {count}: need at least 1.")
    return range(experiment.seed, experiment.seed + count)


def check_pack(pack: int) -> None:
    """So many runs at once."""
    if pack < 0:
        raise RequestError(f"--pack {pack}: need 0 (as many as pay and fit), 1 (one after another) or more.")


def chosen_code(accept_changed: bool, use_stored: bool, resumed: Path | None) -> CodeChoice:
    """The choice of the user's code that these options make."""
    for given, option in ((accept_changed, "--accept-changed-code"), (use_stored, "--use-stored-code")):
        if given and not resumed:
            raise RequestError(
                f"{option} needs --resume DIR; a new run executes your current files anyway. Leave it out."
            )
    if accept_changed and use_stored:
        raise RequestError(
            "--accept-changed-code and --use-stored-code exclude each other: give one of them."
        )
    return "changed" if accept_changed else "stored" if use_stored else "same"


def use_code_of(top: Path, code: CodeChoice) -> AbstractContextManager[None]:
    """In this context, names in configs refer to the chosen code; no effect if all runs are finished."""
    folders = [top / row["folder"] for row in planned_runs(top)] or [top]
    return nullcontext() if all(run_is_finished(folder) for folder in folders) else use_code(top, code)


def to_go_on(
    top: Path,
    plan: Sequence[tuple[Path, Experiment | None]],
    locks: ExitStack,
    code: CodeChoice = "same",
) -> list[RunRequest]:
    """The unfinished runs of a plan; an experiment that is None is read from the run's folder.

    `locks` locks the folder of several runs; the folder of a single run is locked when the run starts.
    """
    if all(folder.parts for folder, _ in plan):
        locks.enter_context(locked(top))
    members = []
    done = [top / folder for folder, _ in plan if run_is_finished(top / folder)]
    for folder in done if len(done) <= NAMED else ():
        say(f"{folder} is finished already.")
    if len(done) > NAMED:
        say(f"{len(done)} of {len(plan)} runs are finished already.")
    for folder, experiment in plan:
        config = top / folder / "config.toml"
        if top / folder in done:
            continue
        if config.is_file():
            if experiment is None:
                with use_code_of(top, code):
                    experiment = read_experiment(top / folder)
            members.append(RunRequest(top / folder, experiment, "resume", code))
        elif experiment:
            members.append(RunRequest(top / folder, experiment, code=code))
        else:
            raise RequestError(f"{top} is not the folder of a run: it has no config.toml.")
    return members


def carried_out(
    members: Sequence[RunRequest],
    top: Path,
    command: str,
    pack: int,
    quiet: bool,
    debug: bool,
    single: bool = False,
) -> list[Failure]:
    """All runs; those that failed are told of and returned. The error of a single one is raised."""
    again = f"kedge {command} --resume {top}"
    failed: list[Failure] = []
    traces: set[str] = set()
    at_once = partial(interrupt_message, members, top, "the last checkpoint holds", again)
    choice = members[0].code if members else "same"
    begun = [one for one in members if one.start == "resume" or one.folder != top]  # the top folder exists
    with use_code(top, choice) if begun else nullcontext(), stoppable(at_once) as stop:
        if begun:
            update_record(top, choice)
        try:
            for outcome in run_all(members, pack, False if quiet else None, say, lambda: stop.asked):
                if outcome.error is None:
                    continue
                folder, error = outcome.request.folder, with_remedy(outcome, again)
                known = next((number for kind, number in CODES if isinstance(error, kind)), None)
                if stop.terminated and (known is None or isinstance(outcome.error, BrokenPipeError)):
                    raise KeyboardInterrupt  # SIGTERM also ended a compiler process that this run waited for
                if (debug or known is None) and outcome.trace not in traces:  # None: not the user's mistake
                    traces.add(outcome.trace)  # runs of a pack that fail together have the same traceback
                    say(outcome.trace)
                if single:
                    raise error
                message = str(error) if known else f"{type(error).__name__}: {error}"
                say(f"error: {folder}: {message}")
                failed.append(Failure(folder, message, known or 1))
        except Interrupted:
            whose = "its state is" if single else "all states are"
            raise KeyboardInterrupt(interrupt_message(members, top, f"{whose} saved", again)) from None
        except Abandoned:
            say(at_once())
            sys.stdout.flush()
            os._exit(INTERRUPTED)  # threads amid a step can neither be stopped nor waited for
        except KeyboardInterrupt:
            raise KeyboardInterrupt(at_once()) from None
    return failed


def interrupt_message(members: Sequence[RunRequest], top: Path, state: str, again: str) -> str:
    """The last message of an interrupted command: the state of its runs, and the command to resume."""
    if any(member.folder != top or has_folder(member) for member in members):  # below `top`, which lists them
        if not any(member.experiment.checkpoint.every for member in members):
            return f"interrupted; nothing is saved (checkpoint.every = 0). Begin again with: {again}"
        return f"interrupted; {state}. Go on with: {again}"
    return "interrupted before the run started. Run the same command again."


def has_folder(member: RunRequest) -> bool:
    """Whether the folder of this run exists; with --force, whether it has replaced the old folder."""
    config = member.folder / "config.toml"
    return member.start == "resume" or (
        config.is_file() and config.read_text(encoding="utf-8") == member.experiment.toml()
    )


def with_remedy(outcome: Outcome, again: str) -> Exception:
    """A run's error; where the system could not write, with what to do."""
    error = outcome.error
    assert error is not None
    if not isinstance(error, OSError):
        return error
    reason = f"{error.strerror or error} ({error.filename or outcome.request.folder})"
    if not (outcome.request.folder / "config.toml").is_file():
        return OSError(
            f"{reason}. The run did not start: its folder {outcome.request.folder} could not be made. "
            "Check that its parent folder can be written, or use another one with --out DIR."
        )
    return OSError(f"{reason}. What was saved before is whole; go on with {again} once it is mended.")


def there(top: Path, plan: Sequence[tuple[Path, Experiment | None]]) -> list[Run]:
    """The runs of a plan that have a folder."""
    return [read_run(top / folder) for folder, _ in plan if (top / folder / "config.toml").is_file()]
