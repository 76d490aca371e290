"""Train several runs, for `kedge run` and `kedge sweep`: resuming, interruptions, failed runs."""

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
    settings = {key.replace("_", "."): value for key, value in chosen.items() if value}
    settings |= parsed_settings(sets) | ({} if seed is None else {"seed": seed})
    return override(read(experiment), settings)


def seed_range(experiment: Experiment, count: int) -> range:
    """`count` seeds, counted up from the experiment's own."""
    if count < 1:
        raise RequestError(f"--seeds {count}: need at least 1.")
    return range(experiment.seed, experiment.seed + count)


def code_choice(accept_changed: bool, use_stored: bool, resumed: Path | None) -> CodeChoice:
    """The version of the user's own code to execute; raise if the options exclude each other."""
    for is_set, option in ((accept_changed, "--accept-changed-code"), (use_stored, "--use-stored-code")):
        if is_set and not resumed:
            raise RequestError(
                f"{option} needs --resume DIR; a new run executes your current files anyway. Leave it out."
            )
    if accept_changed and use_stored:
        raise RequestError(
            "--accept-changed-code and --use-stored-code exclude each other: give one of them."
        )
    return "changed" if accept_changed else "stored" if use_stored else "same"


def use_code_of(top: Path, code: CodeChoice) -> AbstractContextManager[None]:
    """In this context, configurations use the chosen version of the user's code.

    No effect if all runs are finished.
    """
    folders = [top / row["folder"] for row in planned_runs(top)] or [top]
    return nullcontext() if all(run_is_finished(folder) for folder in folders) else use_code(top, code)


def unfinished_runs(
    top: Path,
    plan: Sequence[tuple[Path, Experiment | None]],
    locks: ExitStack,
    code: CodeChoice = "same",
) -> list[RunRequest]:
    """Lock the folder of several runs, print the names of finished runs, and return the others.

    An experiment that is None is read from the run's folder. The folder of a single run is not locked here,
    but when the run starts.
    """
    if all(folder.parts for folder, _ in plan):
        locks.enter_context(locked(top))
    unfinished = []
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
            unfinished.append(RunRequest(top / folder, experiment, "resume", code))
        elif experiment:
            unfinished.append(RunRequest(top / folder, experiment, code=code))
        else:
            raise RequestError(f"{top} is not the folder of a run: it has no config.toml.")
    return unfinished


class TrainingOptions(NamedTuple):
    """The command that trains runs, and its options."""

    command: str  # run or sweep
    pack: int
    quiet: bool
    debug: bool
    single: bool = False  # raise the error of the only run, instead of printing it


def train_runs(requests: Sequence[RunRequest], top: Path, options: TrainingOptions) -> list[Failure]:
    """Train the runs; print and return the failures."""
    resume = f"kedge {options.command} --resume {top}"
    farewell = partial(interrupt_message, requests, top, "the last checkpoint is saved", resume)
    code = requests[0].code if requests else "same"
    top_exists = any(request.start == "resume" or request.folder != top for request in requests)
    failures = FailureLog(options, resume)
    with use_code(top, code) if top_exists else nullcontext(), stoppable(farewell) as stop:
        if top_exists:
            update_record(top, code)
        progress = False if options.quiet else None
        try:
            spread = not options.single
            outcomes = run_all(
                requests, options.pack, progress, print_message, lambda: stop.requested, spread
            )
            for outcome in outcomes:
                if outcome.error is not None:
                    failures.add(outcome, stop.terminated)
        except Interrupted:
            saved = "its state is saved" if options.single else "all states are saved"
            raise KeyboardInterrupt(interrupt_message(requests, top, saved, resume)) from None
        except Abandoned:
            print_message(farewell())
            sys.stdout.flush()
            os._exit(INTERRUPTED)  # a thread in the middle of a step can neither be stopped nor joined
        except KeyboardInterrupt:
            raise KeyboardInterrupt(farewell()) from None
    return failures.failures


class FailureLog:
    """Prints and collects the failed runs of one command; `resume` is the command that resumes them."""

    def __init__(self, options: TrainingOptions, resume: str) -> None:
        self.options, self.resume = options, resume
        self.failures: list[Failure] = []
        self.printed: set[str] = set()  # tracebacks: runs of a pack that fail together have the same one

    def add(self, outcome: Outcome, terminated: bool) -> None:
        """Print the error of a run, or raise it if the run is the only one.

        After SIGTERM (`terminated`), an error may be that of a compiler process that the signal ended, too.
        """
        folder, error = outcome.request.folder, error_with_remedy(outcome, self.resume)
        code = exit_code(error)
        if terminated and (code is None or isinstance(outcome.error, BrokenPipeError)):
            raise KeyboardInterrupt
        if (self.options.debug or code is None) and outcome.trace not in self.printed:
            self.printed.add(outcome.trace)
            print_message(outcome.trace)
        if self.options.single:
            raise error
        message = str(error) if code else f"{type(error).__name__}: {error}"
        print_message(f"error: {folder}: {message}")
        self.failures.append(Failure(folder, message, code or 1))


def interrupt_message(requests: Sequence[RunRequest], top: Path, state: str, resume: str) -> str:
    """The last message of an interrupted command: the state of its runs, and the command to resume."""
    # The folder `top` of several runs exists and lists them.
    if any(request.folder != top or has_folder(request) for request in requests):
        if not any(request.experiment.checkpoint.every for request in requests):
            return f"interrupted; nothing is saved (checkpoint.every = 0). Start again with: {resume}"
        return f"interrupted; {state}. Resume with: {resume}"
    return "interrupted before the run started. Run the same command again."


def has_folder(request: RunRequest) -> bool:
    """Whether the run has its folder; with --force, whether this folder has replaced the old one."""
    config = request.folder / "config.toml"
    return request.start == "resume" or (
        config.is_file() and config.read_text(encoding="utf-8") == request.experiment.toml()
    )


def error_with_remedy(outcome: Outcome, resume: str) -> Exception:
    """The error of a run; if a file could not be written, the message ends with the command `resume`."""
    error = outcome.error
    assert error is not None
    if not isinstance(error, OSError):
        return error
    reason = f"{error.strerror or error} ({error.filename or outcome.request.folder})"
    if not (outcome.request.folder / "config.toml").is_file():
        return OSError(
            f"{reason}. The run did not start: its folder {outcome.request.folder} could not be created. "
            "Check that its parent folder is writable, or name another folder with --out DIR."
        )
    return OSError(
        f"{reason}. The checkpoints saved before are intact. Remove the cause, and resume with: {resume}"
    )


def existing_runs(top: Path, folders: Sequence[Path]) -> list[Run]:
    """The runs in these folders, relative to `top`, that have started."""
    return [read_run(top / folder) for folder in folders if (top / folder / "config.toml").is_file()]
