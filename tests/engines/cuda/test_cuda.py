"""On a GPU: the engines agree with the CPU's reference, and draw the same chance."""

from dataclasses import replace

import pytest
import torch

from kedge.algorithms import METHOD_FACTORIES as BUILT_IN
from kedge.algorithms import fedavg, fedbug, feddyn, scaffold
from kedge.config.task import Task
from kedge.core.algorithm import Algorithm, LocalTraining, Stage, Tune
from kedge.core.optimizers import SGD
from kedge.core.sampling import Participation
from kedge.core.tree import finite, flatten
from kedge.data.augment import Augment
from kedge.data.datasets import synthetic
from kedge.data.federation import federate
from kedge.data.partitions.partition import DirichletClasses
from kedge.engines.engine import Engine
from kedge.engines.sequential import Sequential
from kedge.engines.stack.direct import Direct
from kedge.engines.stack.stacked import Stacked
from kedge.models import MODELS
from kedge.nn.from_module import from_module, seeded
from kedge.running.runner import run

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")]

METHODS = {
    **{name: build() for name, build in BUILT_IN.items()},
    **{f"fedbug+{a.name}": fedbug(a) for a in (fedavg(), feddyn(0.1), scaffold())},
}


def final(
    algorithm: Algorithm, engine: str, device: str, augment: Augment = "none"
) -> dict[str, torch.Tensor]:
    """The server and the metrics after three rounds of ragged clients with batch norm."""
    source = synthetic(300, 4, (1, 8, 8))
    clients = DirichletClasses(6, 0.5, minimum=3)(source.train.y.numpy(), 0)
    data = replace(federate(source, clients, 0.2).to(device, torch.float64), augment=augment)
    module = seeded(lambda: algorithm.rebuild(MODELS["small-cnn"]((1, 8, 8), 4, norm="batch")), 0)
    model = algorithm.adapt(from_module(module))
    stage = Stage(algorithm, 3, LocalTraining(2, 16, SGD(0.05, weight_decay=1e-3), clip=5.0))
    task = Task((stage,), model, data, Participation(per_round=4), tune=Tune(2))
    places: dict[str, Engine] = {
        "sequential": Sequential(model, data),
        "stacked": Stacked(model, data, chunk=3),
        "compiled": Stacked(model, data, backend=Direct(compile=True)),
    }
    ended = run(task, places[engine])
    line = {
        k: torch.tensor(v).double() for k, v in ended.history[-1].items() if k.endswith(("loss", "tuned"))
    }
    return {k: v.cpu() for k, v in {**flatten(ended.server._asdict()), **line}.items()}


def relative_error(left: dict[str, torch.Tensor], right: dict[str, torch.Tensor]) -> float:
    largest = max(float(v.abs().max()) for v in left.values())
    assert set(left) == set(right)
    return max(float((v - right[k]).abs().max()) for k, v in left.items()) / largest


@pytest.mark.parametrize("engine", ["sequential", "stacked"])
@pytest.mark.parametrize("method", METHODS)
def test_the_gpu_agrees_with_the_reference(method: str, engine: str) -> None:
    assert (
        relative_error(final(METHODS[method], "sequential", "cpu"), final(METHODS[method], engine, "cuda"))
        < 1e-10
    )


@pytest.mark.parametrize("engine", ["sequential", "stacked", "compiled"])
def test_the_gpu_moves_the_same_pixels(engine: str) -> None:
    reference = final(fedavg(), "sequential", "cpu", "flip-crop")
    assert relative_error(reference, final(fedavg(), engine, "cuda", "flip-crop")) < 1e-10


@pytest.mark.parametrize("method", ["scaffold", "moon", "fedtr", "fedrod"])
def test_the_compiled_engine_agrees_on_the_gpu(method: str) -> None:
    reference = final(METHODS[method], "sequential", "cpu")
    assert relative_error(reference, final(METHODS[method], "compiled", "cuda")) < 1e-10


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf"), 3e38])
def test_the_gpu_finds_a_number_that_is_not_finite(bad: float) -> None:
    numbers = torch.ones(100_000, device="cuda")
    numbers[77_777] = bad
    tree = {"a": numbers, "b": {"c": torch.zeros(3, device="cuda"), "n": torch.ones(2, dtype=torch.int64)}}
    assert bool(finite(tree)) == (bad == 3e38)
