"""Sequential = stacked on residual networks that FedBug opens by module and by block."""

from collections.abc import Callable

import pytest
import torch
from tests.contract.problem import CLASSES, TOLERANCE, disagreement, federation
from tests.residual import Residual
from torch import nn

from kedge.algorithms import fedavg, fedbug, scaffold
from kedge.core.algorithm import LocalTraining
from kedge.core.model import Model
from kedge.core.optimizers import SGD
from kedge.models.resnet import resnet18, resnet20
from kedge.nn.from_module import from_module, seeded
from kedge.nn.units import Granularity

IMAGE = (1, 8, 8)
each_granularity = pytest.mark.parametrize("granularity", ["module", "block"])


def model_of(build: Callable[[], nn.Module], granularity: Granularity) -> Model:
    return from_module(seeded(build, 0), units=granularity)


@pytest.mark.slow
@each_granularity
@pytest.mark.parametrize(
    "build",
    [lambda: resnet18(IMAGE, CLASSES, width=4), lambda: resnet20(IMAGE, CLASSES, norm="group", width=4)],
    ids=["resnet18", "resnet20"],
)
def test_engines_agree_with_group_norm(build: Callable[[], nn.Module], granularity: Granularity) -> None:
    local = LocalTraining(2, 4, SGD(0.1, weight_decay=1e-2, decay=0.9), clip=1.0)
    algorithm = fedbug(scaffold(), 0.8)
    assert disagreement(algorithm, local, model_of(build, granularity), federation(shape=IMAGE)) < TOLERANCE


@pytest.mark.slow
@each_granularity
def test_engines_agree_with_batch_norm(granularity: Granularity) -> None:
    """The learning rate is small, because deep batch norm over a few samples is chaotic.

    With a rate of 0.1 and the ImageNet stem, weights that differ by 1e-16 end 1e-1 apart on the same engine.
    """
    local = LocalTraining(2, 4, SGD(0.01, weight_decay=1e-2, decay=0.9), clip=1.0)
    model = model_of(lambda: resnet20(IMAGE, CLASSES, norm="batch", width=4), granularity)
    assert disagreement(fedbug(fedavg()), local, model, federation(shape=IMAGE)) < TOLERANCE


def test_engines_agree_on_a_network_with_operations_in_place() -> None:
    """In-place ReLU and addition, as in torchvision, run under vmap. Larger images suit its batch norms."""
    shape = (1, 32, 32)
    local = LocalTraining(1, 4, SGD(0.01, weight_decay=1e-2), clip=1.0)
    model = model_of(lambda: Residual(1, CLASSES, width=4), "block")
    data = federation((2, 5, 8), shape, torch.float64)
    assert disagreement(fedbug(fedavg()), local, model, data, [[0, 1, 2]]) < TOLERANCE
