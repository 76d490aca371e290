"""The engine settings of a run: chosen when it starts, stored in environment.json, kept when it resumes."""

import json
import os
import platform
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from kedge.config.assemble import NO_CUDA
from kedge.config.experiment import EngineChoice
from kedge.config.task import Task
from kedge.core.errors import DataError
from kedge.engines.choice.choose import Choice, EngineOptions, choose
from kedge.engines.choice.trial import Work
from kedge.running.folders.folder import write
from kedge.running.recording.run_state import frozen_digest
from kedge.version import __version__

FILE = "environment.json"
FEDERATION = "flower"  # the engine's name in a run of kedge serve
NEEDED = ("name", "compiled", "chunk", "threads")
CHOICE = ("name", "compiled", "chunk", "reason", "streams")


def choose_engine(tasks: Sequence[Task], wanted: EngineChoice, say: Callable[[str], None]) -> dict[str, Any]:
    """Choose the engine for runs that train at once, and set torch's thread count; return all settings."""
    torch.set_num_threads(wanted.threads or torch.get_num_threads())
    first = tasks[0]
    device = first.federation.pool.x.device
    if wanted.device == "cuda" and device.type != "cuda":
        say(NO_CUDA)
    clients = sum(task.participation.count(len(task.federation.clients)) for task in tasks)
    rounds = max(task.rounds for task in tasks)
    work = Work(first.model, first.federation, first.stages[0], clients, rounds)
    settings = EngineOptions(wanted.name, wanted.compile, wanted.chunk, wanted.streams, first.precision)
    choice = choose(work, settings, say)
    return {
        **asdict(choice),
        "device": str(device),
        "precision": first.precision,
        "threads": torch.get_num_threads(),
        "packed": len(tasks),
    }


def choice_of(settings: Mapping[str, Any]) -> Choice:
    """The `Choice` of an engine that these settings record."""
    return Choice(**{key: settings[key] for key in CHOICE if key in settings})  # old runs have no streams


def read_engine_settings(folder: Path | None) -> dict[str, Any] | None:
    """Engine settings recorded when the run in `folder` first started, or None."""
    file = folder / FILE if folder else None
    if file is None or not file.is_file():
        return None
    try:
        settings: dict[str, Any] = json.loads(file.read_bytes())["engine"]
        settings = {**settings, **{key: settings[key] for key in NEEDED}}
    except (ValueError, KeyError, TypeError) as error:
        raise DataError(
            f"{file} is damaged ({error!r}). Restore it from a copy; or delete it: kedge then chooses the "
            "engine again, and the last digits of the results change if it chooses another one."
        ) from error
    return settings


def write_environment(folder: Path | None, task: Task, settings: dict[str, Any]) -> None:
    """Write environment.json, if the run has a folder."""
    if folder:
        write(folder / FILE, json.dumps(environment(task, settings), indent=1).encode())


def environment(task: Task, settings: dict[str, Any]) -> dict[str, Any]:
    """The content of environment.json: versions, hardware, seed and engine settings."""
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
        "engine": settings,
        **({"frozen": frozen} if frozen else {}),  # sha256; a resumed run must have the same
    }


@contextmanager
def preserve_thread_count() -> Iterator[None]:
    """Restore torch's thread count at the end of this context."""
    before = torch.get_num_threads()
    try:
        yield
    finally:
        torch.set_num_threads(before)
