"""Run or resume one experiment: assemble its task, lock its folder, choose an engine, train.

The commands and the Python calls share these functions.
"""

from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from kedge.config.assemble import assemble
from kedge.config.document import read
from kedge.config.experiment import EngineChoice, Experiment, resolve
from kedge.config.federations import partition_record_of, without_checksums
from kedge.config.task import Task
from kedge.core.errors import RequestError
from kedge.data.partitions.saved import PARTITION_FILE
from kedge.engines.choice.compiling import compile_failure
from kedge.engines.choice.fallback import without_torch_warnings
from kedge.engines.choice.unstackable import explain_stacking_errors
from kedge.nn.precision import computing_in
from kedge.running.engine_settings import (
    FEDERATION,
    choose_engine,
    preserve_thread_count,
    read_engine_settings,
    write_environment,
)
from kedge.running.folders.checkpoint import newest_facts
from kedge.running.folders.folder import check_free, create, locked
from kedge.running.folders.identity import check_identity, experiment_identity
from kedge.running.folders.marker import Marker, read_marker
from kedge.running.folders.partition_check import check_partition
from kedge.running.folders.resumed_code import update_record, use_code
from kedge.running.folders.sources import CodeChoice, code_names, contents
from kedge.running.open_engine import choose_settings, cluster_of, open_engine
from kedge.running.progress import Observer
from kedge.running.recording.history import complete_rounds, history_problem
from kedge.running.result import Result, result_of
from kedge.running.runner import run


def execute(
    experiment: Experiment, folder: Path | None = None, observer: Observer | None = None, force: bool = False
) -> Result:
    """Run an experiment from the start, in a new folder if one is given."""
    with ExitStack() as locks:
        task = create_run(experiment, folder, force, locks)
        return run_experiment(task, experiment, folder, observer)


def resume(folder: Path, observer: Observer | None = None, code: CodeChoice = "same") -> Result:
    """Resume the run in `folder` from its newest checkpoint, with this choice of the user's code."""
    with use_code(folder, code):
        read_experiment(folder)
        with locked(folder):
            experiment, task = load_run(folder, code)
            return run_experiment(task, experiment, folder, observer)


def create_run(experiment: Experiment, folder: Path | None, force: bool, locks: ExitStack) -> Task:
    """Create the folder of a new run, locked by `locks`, and return its task."""
    if folder:
        check_free(folder, force)  # before data are loaded
    task = assemble(experiment)
    if folder:
        partition = partition_record_of(experiment, task.federation).to_bytes()
        code = contents(code_names(experiment))
        files: dict[str, str | bytes] = {"config.toml": experiment.toml(), PARTITION_FILE: partition, **code}
        create(folder, files, Marker("run", experiment_identity(experiment)), force, locks)
    return task


def read_experiment(folder: Path) -> Experiment:
    """Read the experiment in the config.toml of a run's folder."""
    if not (folder / "config.toml").is_file():
        raise RequestError(f"{folder} is not the folder of a run: it has no config.toml.")
    read_marker(folder)  # raises if a newer version wrote it
    document = read(folder / "config.toml")
    if document.get("call") == "kedge.train":
        raise RequestError(
            f"{folder} belongs to a call of kedge.train: make the same call with resume=True to resume it."
        )
    return resolve(without_checksums(document))


def load_run(folder: Path, code: CodeChoice = "same") -> tuple[Experiment, Task]:
    """Load the experiment of a run's folder and its task; raise if settings, data or code have changed."""
    with use_code(folder, code):
        experiment = read_experiment(folder)
        check_identity(
            folder,
            experiment_identity(experiment),
            f"Undo the changes in {folder / 'config.toml'}, or start a new run with them: kedge run "
            f"{folder / 'config.toml'} --out DIR. In a run that has started you may change only rounds, "
            "name, the tables checkpoint and engine (except engine.precision), data.verify and paths.",
        )
        if experiment.partition["name"] == "saved" and (folder / PARTITION_FILE).is_file():
            # The run's own copy; the original file may be gone.
            experiment = replace(
                experiment, partition={"name": "saved", "path": str(folder / PARTITION_FILE)}
            )
        task = assemble(experiment)
        update_record(folder, code, code_names(experiment))
    check_partition(folder, partition_record_of(experiment, task.federation))
    return experiment, task


def run_experiment(
    task: Task, experiment: Experiment, folder: Path | None, observer: Observer | None
) -> Result:
    """Train the remaining rounds of an experiment whose folder is locked."""
    every = experiment.checkpoint.every
    return run_locked(task, experiment.engine, experiment.name, every, folder, observer or Observer())


def run_locked(
    task: Task,
    wanted: EngineChoice,
    name: str,
    checkpoint_every: int,
    folder: Path | None,
    observer: Observer,
) -> Result:
    """Run or resume in a locked folder, always on the engine that was chosen at the first start.

    If engine "auto" has chosen an engine that cannot compile the network, it chooses one without compiling.
    """
    with (
        computing_in(task.precision),
        preserve_thread_count(),
        without_torch_warnings(),
        explain_stacking_errors(),
    ):
        settings = read_engine_settings(folder)
        if settings and settings["name"] == FEDERATION:
            raise RequestError(
                f"{folder} is a run of kedge serve: its clients have their memories. Continue it with kedge "
                f"serve --resume {folder}."
            )
        with cluster_of(wanted, settings):
            if settings is None:
                settings = choose_settings(task, wanted, observer.say)
                write_environment(folder, task, settings)
            while True:
                torch.set_num_threads(settings["threads"])
                try:
                    return train_rounds(task, settings, name, checkpoint_every, folder, observer)
                except Exception as error:
                    reason = compile_failure(error)
                    if reason is None or wanted.name != "auto" or not settings["compiled"]:
                        raise
                # Outside `except` the error is freed, and with it the engine in its frames.
                observer.say(f"choosing an engine that compiles nothing: {reason}")
                settings = choose_engine([task], replace(wanted, compile="off"), observer.say)
                write_environment(folder, task, settings)


def train_rounds(
    task: Task,
    settings: dict[str, Any],
    name: str,
    checkpoint_every: int,
    folder: Path | None,
    observer: Observer,
) -> Result:
    """Train the remaining rounds on the engine that `settings` describe."""
    with open_engine(task, settings, observer.say) as engine:
        progress = run(task, engine, folder, checkpoint_every, settings, observer)
        return result_of(task, engine, progress, name, settings, folder)


def run_is_finished(folder: Path) -> bool:
    """Whether the run in this folder is finished and its history is undamaged."""
    config = folder / "config.toml"
    if not config.is_file() or not (folder / "model.safetensors").is_file():
        return False
    rounds = complete_rounds(folder)
    if rounds is None or rounds != read(config).get("rounds"):
        return False
    facts = newest_facts(folder / "checkpoint")
    return facts is None or history_problem(folder, facts) is None
