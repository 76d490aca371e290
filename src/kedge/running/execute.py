"""Run an experiment: engine chosen, folder kept, result handed back; commands and Python calls share this."""

import json
import os
import platform
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch

from kedge.config.assemble import NO_CUDA, assemble
from kedge.config.dealing import holdings_of, without_checksums
from kedge.config.document import read
from kedge.config.experiment import EngineChoice, Experiment, resolve
from kedge.config.task import Task
from kedge.core.errors import DataError, RequestError
from kedge.data.partitions.saved import FILE
from kedge.engines.choose import Choice, build, choose
from kedge.engines.compiling import compile_failure
from kedge.engines.fallback import without_torch_warnings
from kedge.engines.unstackable import explain_stacking_errors
from kedge.nn.precision import computing_in
from kedge.running.folders.checkpoint import newest_facts
from kedge.running.folders.folder import check_free, create, locked, write
from kedge.running.folders.identity import check_identity, experiment_identity
from kedge.running.folders.kept_partition import check_kept
from kedge.running.folders.marker import Marker, read_marker
from kedge.running.folders.resumed_code import update_record, use_code
from kedge.running.folders.sources import CodeChoice, contents, own_names
from kedge.running.progress import Observer
from kedge.running.recording.history import history_problem, whole_rounds
from kedge.running.recording.saving import frozen_digest
from kedge.running.result import Result, result_of
from kedge.running.runner import run
from kedge.version import __version__


def execute(
    experiment: Experiment, folder: Path | None = None, observer: Observer | None = None, force: bool = False
) -> Result:
    """Run an experiment from the start, in a new folder if one is given."""
    with ExitStack() as locks:
        task = begun(experiment, folder, force, locks)
        return go_on(task, experiment, folder, observer)


def begun(experiment: Experiment, folder: Path | None, force: bool, locks: ExitStack) -> Task:
    """Make the folder of a new run, locked by `locks`, and return its task."""
    if folder:
        check_free(folder, force)  # before data are loaded
    task = assemble(experiment)
    if folder:
        dealt = holdings_of(experiment, task.federation).packed()
        code = contents(own_names(experiment))
        files: dict[str, str | bytes] = {"config.toml": experiment.toml(), FILE: dealt, **code}
        create(folder, files, Marker("run", experiment_identity(experiment)), force, locks)
    return task


def resume(folder: Path, observer: Observer | None = None, code: CodeChoice = "same") -> Result:
    """Resume the run in `folder` from its newest checkpoint, with this choice of the user's code."""
    with use_code(folder, code):
        experiment_in(folder)
        with locked(folder):
            experiment, task = taken_up(folder, code)
            return go_on(task, experiment, folder, observer)


def go_on(task: Task, experiment: Experiment, folder: Path | None, observer: Observer | None) -> Result:
    """Run the remaining rounds of an experiment whose folder is locked."""
    every = experiment.checkpoint.every
    return held(task, experiment.engine, experiment.name, every, folder, observer or Observer())


def experiment_in(folder: Path) -> Experiment:
    """The experiment in the config.toml of a run's folder."""
    if not (folder / "config.toml").is_file():
        raise RequestError(f"{folder} is not the folder of a run: it has no config.toml.")
    read_marker(folder)  # raises if a newer version wrote it
    document = read(folder / "config.toml")
    if document.get("call") == "kedge.train":
        raise RequestError(
            f"{folder} belongs to a call of kedge.train: make the same call with resume=True to resume it."
        )
    return resolve(without_checksums(document))


def taken_up(folder: Path, code: CodeChoice = "same") -> tuple[Experiment, Task]:
    """The experiment in a folder, and its task with the data and the code that the run started with."""
    with use_code(folder, code):
        experiment = experiment_in(folder)
        check_identity(
            folder,
            experiment_identity(experiment),
            f"Undo the changes in {folder / 'config.toml'}, or start a new run with them: kedge run "
            f"{folder / 'config.toml'} --out DIR. In a run that has started you may change only rounds, "
            "name, the tables checkpoint and engine (except engine.precision), data.verify and paths.",
        )
        if experiment.partition["name"] == "saved" and (folder / FILE).is_file():
            # The run's own copy; the original file may be gone.
            experiment = replace(experiment, partition={"name": "saved", "path": str(folder / FILE)})
        task = assemble(experiment)
        update_record(folder, code, own_names(experiment))
    check_kept(folder, holdings_of(experiment, task.federation))
    return experiment, task


def held(
    task: Task,
    wanted: EngineChoice,
    name: str,
    checkpoint_every: int,
    folder: Path | None,
    observer: Observer,
) -> Result:
    """Run or resume in a locked folder; the engine chosen at the first start is kept for the whole run."""
    with (
        computing_in(task.precision),
        threads_put_back(),
        without_torch_warnings(),
        explain_stacking_errors(),
    ):
        chosen = recorded(folder)
        if chosen is None:
            chosen = settled([task], wanted, observer.say)
            record(folder, task, chosen)
        while True:
            torch.set_num_threads(chosen["threads"])
            engine = build(choice_of(chosen), task.model, task.federation, task.takes_part)
            try:
                progress = run(task, engine, folder, checkpoint_every, chosen, observer)
                break
            except Exception as error:
                told = compile_failure(error)
                if told is None or wanted.name != "auto" or not chosen["compiled"]:
                    raise
            # Outside `except` the error is freed, and with it the memory that its frames held.
            del engine
            observer.say(f"choosing an engine that compiles nothing: {told}")
            chosen = settled([task], replace(wanted, compile="off"), observer.say)
            record(folder, task, chosen)
    return result_of(task, engine, progress, name, chosen, folder)


@contextmanager
def threads_put_back() -> Iterator[None]:
    """Leave torch with as many threads as it had."""
    before = torch.get_num_threads()
    try:
        yield
    finally:
        torch.set_num_threads(before)


def recorded(folder: Path | None) -> dict[str, Any] | None:
    """The engine settings a run began with; None where it has not."""
    file = folder / "environment.json" if folder else None
    if file is None or not file.is_file():
        return None
    try:
        settings: dict[str, Any] = json.loads(file.read_bytes())["engine"]
        settings = {**settings, **{key: settings[key] for key in ("name", "compiled", "chunk", "threads")}}
    except (ValueError, KeyError, TypeError) as error:
        raise DataError(
            f"{file} is damaged ({error!r}). Restore it from a copy; or delete it: kedge then chooses the "
            "engine again, and the last digits of the results change if it chooses another one."
        ) from error
    return settings


def record(folder: Path | None, task: Task, chosen: dict[str, Any]) -> None:
    """Keep what a run begins with."""
    if folder:
        write(folder / "environment.json", json.dumps(environment(task, chosen), indent=1).encode())


def settled(tasks: Sequence[Task], wanted: EngineChoice, say: Callable[[str], None]) -> dict[str, Any]:
    """Every engine setting with its final value, for runs that train at once; torch's threads are set."""
    torch.set_num_threads(wanted.threads or torch.get_num_threads())
    first = tasks[0]
    device = first.federation.pool.x.device
    if wanted.device == "cuda" and device.type != "cuda":
        say(NO_CUDA)
    choice = choose(
        first.model,
        first.federation,
        first.stages[0],
        sum(task.participation.count(len(task.federation.clients)) for task in tasks),
        max(task.rounds for task in tasks),
        wanted.name,
        wanted.compile,
        wanted.chunk,
        wanted.streams,
        first.precision,
        say,
    )
    return {
        **asdict(choice),
        "device": str(device),
        "precision": first.precision,
        "threads": torch.get_num_threads(),
        "packed": len(tasks),
    }


CHOSEN = ("name", "compiled", "chunk", "reason", "streams")


def choice_of(chosen: Mapping[str, Any]) -> Choice:
    """The engine of these settings."""
    return Choice(**{k: chosen[k] for k in CHOSEN if k in chosen})  # runs of before had no streams


def environment(task: Task, chosen: dict[str, Any]) -> dict[str, Any]:
    """Versions, hardware, and what runs."""
    device = task.federation.pool.x.device
    frozen = frozen_digest(task.model)
    return {
        "kedge": __version__,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "platform": platform.platform(),
        "cpus": os.cpu_count(),
        "gpu": torch.cuda.get_device_name(device) if device.type == "cuda" else None,
        "seed": task.seed,
        "engine": chosen,
        **({"frozen": frozen} if frozen else {}),  # sha256; a resumed run must have the same
    }


def finished(folder: Path) -> bool:
    """Whether the run in this folder is finished and its history is undamaged."""
    config = folder / "config.toml"
    if not config.is_file() or not (folder / "model.safetensors").is_file():
        return False
    rounds = whole_rounds(folder)
    if rounds is None or rounds != read(config).get("rounds"):
        return False
    facts = newest_facts(folder / "checkpoint")
    return facts is None or history_problem(folder, facts) is None
