"""A run of two stages resumes to the last byte of the model and the history."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.contract.problem import federation, network

from kedge.algorithms import fedavg, feddyn
from kedge.config.task import Task
from kedge.core.algorithm import LocalTraining, Stage
from kedge.core.model import Model
from kedge.core.optimizers import SGD
from kedge.core.sampling import Participation
from kedge.data.federation import Federation
from kedge.engines.engine import Engine
from kedge.engines.sequential import Sequential
from kedge.running.progress import Interrupted, Observer
from kedge.running.runner import run

LOCAL = LocalTraining(2, 4, SGD(0.1, weight_decay=1e-2, decay=0.9), clip=0.5)
SOME = Participation("bernoulli", share=0.6)


def stop_after(rounds: int) -> Observer:
    """An observer that stops the run at the end of this round."""
    done: list[Any] = []

    def stop() -> bool:
        done.append(None)
        return len(done) == rounds

    return Observer(stop=stop)


def written(folder: Path) -> tuple[bytes, bytes, list[dict[str, Any]]]:
    """The models of a run, and its history without the times."""
    lines = [json.loads(line) for line in (folder / "history.jsonl").read_text().splitlines()]
    history = [{k: v for k, v in line.items() if k != "time"} for line in lines]
    return (folder / "model.safetensors").read_bytes(), (folder / "average.safetensors").read_bytes(), history


def both_ways(task: Task, engine: Callable[[Model, Federation], Engine], folder: Path, after: int) -> None:
    """Run through, and run with an interruption after some rounds; both leave the same bytes."""
    whole, broken = folder / "whole", folder / "broken"
    for path in (whole, broken):
        path.mkdir()
    through = run(task, engine(task.model, task.federation), whole)
    with pytest.raises(Interrupted):
        run(task, engine(task.model, task.federation), broken, observer=stop_after(after))
    assert not (broken / "model.safetensors").exists()
    resumed = run(task, engine(task.model, task.federation), broken)
    assert written(whole) == written(broken)
    assert len(resumed.history) == len(through.history) == task.rounds


@pytest.mark.parametrize("after", [1, 2, 3])
def test_a_run_of_two_stages_resumes_before_at_and_after_the_switch(after: int, tmp_path: Path) -> None:
    stages = (Stage(feddyn(0.1), 2, LOCAL), Stage(fedavg(), 2, LOCAL))
    both_ways(Task(stages, network("group"), federation(), SOME), Sequential, tmp_path, after)
