"""On a GPU: the engines agree with the CPU's reference, and draw the same chance."""

import pytest
import torch

from kedge.algorithms import fedavg, fedbug, feddyn, fedprox, scaffold
from kedge.core.algorithm import Algorithm, Local, Stage
from kedge.core.model import from_module, seeded
from kedge.core.optimizers import SGD
from kedge.core.tree import flatten
from kedge.data.datasets import synthetic
from kedge.data.federation import federate
from kedge.data.partition import DirichletClasses
from kedge.engines.engine import Engine
from kedge.engines.sequential import Sequential
from kedge.engines.stacked import Stacked
from kedge.models import MODELS
from kedge.running.runner import run
from kedge.running.sampling import Participation
from kedge.running.task import Task

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")]

METHODS = {a.name: a for a in (
    fedavg(), fedprox(0.1), feddyn(0.1), scaffold(), fedbug(fedavg()), fedbug(feddyn(0.1)), fedbug(scaffold())
)}  # fmt: skip


def final(algorithm: Algorithm, engine: str, device: str) -> dict[str, torch.Tensor]:
    """The server after three rounds of ragged clients with batch norm."""
    source = synthetic(300, 4, (1, 8, 8))
    clients = DirichletClasses(6, 0.5, minimum=3)(source.train.y.numpy(), 0)
    data = federate(source, clients, 0.2).to(device, torch.float64)
    model = from_module(seeded(lambda: MODELS["small-cnn"]((1, 8, 8), 4, norm="batch"), 0))
    stage = Stage(algorithm, 3, Local(2, 16, SGD(0.05, weight_decay=1e-3), clip=5.0))
    task = Task((stage,), model, data, Participation(per_round=4))
    places: dict[str, Engine] = {
        "sequential": Sequential(model, data),
        "stacked": Stacked(model, data, chunk=3),
        "compiled": Stacked(model, data, compiled=True),
    }
    return {k: v.cpu() for k, v in flatten(run(task, places[engine]).server._asdict()).items()}


@pytest.mark.parametrize("engine", ["sequential", "stacked"])
@pytest.mark.parametrize("method", METHODS)
def test_the_gpu_agrees_with_the_reference(method: str, engine: str) -> None:
    reference, found = final(METHODS[method], "sequential", "cpu"), final(METHODS[method], engine, "cuda")
    largest = max(float(v.abs().max()) for v in reference.values())
    assert max(float((v - found[k]).abs().max()) for k, v in reference.items()) < 1e-10 * largest


def test_the_compiled_engine_agrees_on_the_gpu() -> None:
    reference, found = (
        final(METHODS["scaffold"], "sequential", "cpu"),
        final(METHODS["scaffold"], "compiled", "cuda"),
    )
    largest = max(float(v.abs().max()) for v in reference.values())
    assert max(float((v - found[k]).abs().max()) for k, v in reference.items()) < 1e-10 * largest
