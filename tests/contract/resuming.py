"""Runs that are interrupted and resumed, and the files that they leave."""

import json
from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from kedge.config.task import Task
from kedge.core.algorithm import LocalTraining
from kedge.core.model import Model
from kedge.core.optimizers import SGD
from kedge.core.sampling import Participation
from kedge.data.federation import Federation
from kedge.engines.engine import Engine
from kedge.running.progress import Interrupted, Observer
from kedge.running.runner import run

LOCAL = LocalTraining(2, 4, SGD(0.1, weight_decay=1e-2, decay=0.9), clip=0.5)
PARTICIPATION = Participation("bernoulli", share=0.6)


def stop_after(rounds: int) -> Observer:
    """An observer that stops the run after `rounds` rounds."""
    finished = count(1)
    return Observer(stop=lambda: next(finished) == rounds)


def models_and_history(folder: Path) -> tuple[bytes, bytes, list[dict[str, Any]]]:
    """The final and the average model of a run as bytes, and its history without times."""
    lines = [json.loads(line) for line in (folder / "history.jsonl").read_text().splitlines()]
    history = [{k: v for k, v in line.items() if k != "time"} for line in lines]
    return (folder / "model.safetensors").read_bytes(), (folder / "average.safetensors").read_bytes(), history


def assert_resume_is_exact(
    task: Task, engine: Callable[[Model, Federation], Engine], folder: Path, after: int
) -> None:
    """A run that is stopped after `after` rounds and resumed writes the bytes of an uninterrupted run."""
    whole, stopped = folder / "whole", folder / "stopped"
    for path in (whole, stopped):
        path.mkdir()
    uninterrupted = run(task, engine(task.model, task.federation), whole)
    with pytest.raises(Interrupted):
        run(task, engine(task.model, task.federation), stopped, observer=stop_after(after))
    assert not (stopped / "model.safetensors").exists()
    resumed = run(task, engine(task.model, task.federation), stopped)
    assert models_and_history(whole) == models_and_history(stopped)
    assert len(resumed.history) == len(uninterrupted.history) == task.rounds
