"""On a GPU: two workers that share it train on captured graphs, as one process does."""

from typing import Any

import pytest
import torch
from tests.contract.problem import TOLERANCE, distance, federation, network

from kedge.algorithms import scaffold
from kedge.audit.training import run_state
from kedge.config.experiment import EngineChoice
from kedge.config.task import Task
from kedge.core.algorithm import LocalTraining, Stage
from kedge.core.optimizers import SGD
from kedge.core.sampling import Participation
from kedge.core.tree import flatten
from kedge.engines.engine import Engine
from kedge.engines.ray.cluster import Cluster
from kedge.engines.sequential import Sequential
from kedge.nn.precision import computing_in
from kedge.running.open_engine import choose_settings, open_engine
from kedge.running.runner import run

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.slow,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
]

WANTED = EngineChoice("ray", device="cuda", precision="fp64", workers=2, worker_engine="captured", threads=1)
Say = list[str]


def scaffold_task() -> Task:
    """SCAFFOLD with batch norm on clients of different sizes, three of four in each round."""
    stage = Stage(scaffold(), 3, LocalTraining(2, 4, SGD(0.1, weight_decay=1e-2), clip=1.0))
    model, data = network("batch", of=stage.algorithm), federation().to("cuda", torch.float64)
    return Task((stage,), model, data, Participation(per_round=3), precision="fp64")


def end_state(task: Task, engine: Engine) -> dict[str, torch.Tensor]:
    """The server and all memories after the rounds of the task."""
    with computing_in("fp64"):
        return {k: v.cpu() for k, v in flatten(run_state(run(task, engine).server, engine)).items()}


def on_two_workers(task: Task, settings: dict[str, Any], messages: Say) -> dict[str, torch.Tensor]:
    """The end state on the workers that `settings` describe."""
    with open_engine(task, settings, messages.append) as engine:
        return end_state(task, engine)


def test_two_workers_on_captured_graphs_share_a_gpu(cluster: Cluster) -> None:
    """They agree with the sequential engine on the same GPU, and a second run has the same bits."""
    task = scaffold_task()
    messages: Say = []
    settings = choose_settings(task, WANTED, messages.append)
    assert (settings["worker_engine"], settings["device"]) == ("captured", "cuda")
    assert (settings["workers"], settings["gpus"]) == (2, 0.5)
    first, second = (on_two_workers(task, settings, messages) for _ in range(2))
    assert not any("lost" in message for message in messages)
    assert distance(end_state(task, Sequential(task.model, task.federation)), first) < TOLERANCE
    assert all(torch.equal(v, second[k]) for k, v in first.items())
