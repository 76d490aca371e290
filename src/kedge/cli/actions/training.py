"""Training of several runs, for `kedge run` and `kedge sweep`: resuming, interruptions, failed runs."""

import os
import sys
from collections.abc import Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from kedge.cli.errors import exit_code
from kedge.cli.output import print_message
from kedge.cli.signals import INTERRUPTED, stoppable
from kedge.config.document import override, parsed_settings, read
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

MOST_NAMED = 8  # finished runs that are named one by one


class PlannedRun(NamedTuple):
    """A run: its folder, relative to the command's folder, and its experiment."""

    folder: Path
    experiment: Experiment


class Failure(NamedTuple):
    """A run that failed, and the exit code of its error."""

    folder: Path
    error: str
    code: int


def read_document(experiment: str, sets: list[str], seed: int | None, **chosen: str) -> dict[str, Any]:
    """An experiment's document with the settings of the command line.

    The keys of `chosen` have _ for the dot: engine_name sets engine.name. Empty values set nothing.
    """
    given = {key.replace("_", "."): value for key, value in chosen.items() if value}
    return override(
        read(experiment), given | parsed_settings(sets) | ({} if seed is None else {"seed": seed})
    )


def seed_range(experiment: Experiment, count: int) -> range:
    """`count` seeds, counted up from the experiment's own."""
    if count < 1:
        raise RequestError(f"--seeds {count}: need at least 1.")
    return range(experiment.seed, experiment.seed + count)


def code_choice(accept_changed: bool, use_stored: bool, resumed: Path | None) -> CodeChoice:
    """Which version of the user's own code to execute."""
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
    """In this context, configs refer to the chosen code of the user. No effect if all runs are finished."""
    folders = [top / row["folder"] for row in planned_runs(top)] or [top]
    return nullcontext() if all(run_is_finished(folder) for folder in folders) else use_code(top, code)


def unfinished_runs(
    top: Path,
    plan: Sequence[tuple[Path, Experiment | None]],
    locks: ExitStack,
    code: CodeChoice = "same",
) -> list[RunRequest]:
    """The runs of a plan that are not finished. Print the names of the others.

    An experiment that is None is read from the run's folder. `locks` locks the folder of several runs; the
    folder of a single run is locked when the run starts.
    """
    if all(folder.parts for folder, _ in plan):
        locks.enter_context(locked(top))
    members = []
    done = [top / folder for folder, _ in plan if run_is_finished(top / folder)]
    for folder in done if len(done) <= MOST_NAMED else ():
        print_message(f"{folder} is finished already.")
    if len(done) > MOST_NAMED:
        print_message(f"{len(done)} of {len(plan)} runs are finished already.")
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


def train_runs(
    members: Sequence[RunRequest],
    top: Path,
    command: str,
    pack: int,
    quiet: bool,
    debug: bool,
    single: bool = False,
) -> list[Failure]:
    """Train the runs; print and return the failures. With `single`, raise the error instead."""
    again = f"kedge {command} --resume {top}"
    failed: list[Failure] = []
    traces: set[str] = set()
    at_once = partial(interrupt_message, members, top, "the last checkpoint holds", again)
    choice = members[0].code if members else "same"
    started = [one for one in members if one.start == "resume" or one.folder != top]  # the top folder exists
    with use_code(top, choice) if started else nullcontext(), stoppable(at_once) as stop:
        if started:
            update_record(top, choice)
        try:
            shown = False if quiet else None
            for outcome in run_all(members, pack, shown, print_message, lambda: stop.asked):
                if outcome.error is None:
                    continue
                folder, error = outcome.request.folder, error_with_remedy(outcome, again)
                known = exit_code(error)
                if stop.terminated and (known is None or isinstance(outcome.error, BrokenPipeError)):
                    raise KeyboardInterrupt  # SIGTERM also ended a compiler process that this run waited for
                if (debug or known is None) and outcome.trace not in traces:  # None: not the user's mistake
                    traces.add(outcome.trace)  # runs of a pack that fail together have the same traceback
                    print_message(outcome.trace)
                if single:
                    raise error
                message = str(error) if known else f"{type(error).__name__}: {error}"
                print_message(f"error: {folder}: {message}")
                failed.append(Failure(folder, message, known or 1))
        except Interrupted:
            whose = "its state is" if single else "all states are"
            raise KeyboardInterrupt(interrupt_message(members, top, f"{whose} saved", again)) from None
        except Abandoned:
            print_message(at_once())
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


def error_with_remedy(outcome: Outcome, again: str) -> Exception:
    """The error of a run; if the system could not write a file, the message says what to do."""
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


def existing_runs(top: Path, folders: Sequence[Path]) -> list[Run]:
    """The runs in these folders, relative to `top`, that have started."""
    return [read_run(top / folder) for folder in folders if (top / folder / "config.toml").is_file()]
