"""Deep networks with batch norm, in which a padding row of zero variance could overflow."""

import pytest
import torch
from tests.contract.algorithms import ALGORITHMS, BUILT_IN
from tests.contract.problem import CLASSES, TOLERANCE, disagreement, federation
from torch import Tensor, nn

from kedge.audit.training import train_rounds
from kedge.core.algorithm import LocalTraining
from kedge.core.model import Model
from kedge.core.optimizers import SGD
from kedge.engines.sequential import Sequential
from kedge.engines.stack.stacked import Stacked
from kedge.models.resnet import resnet18
from kedge.nn.from_module import from_module, seeded


class Block(nn.Module):
    """Two convolutions with batch norm around a shortcut."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(channels, channels, 3, padding=1, bias=False), nn.BatchNorm2d(channels), nn.ReLU(),
            nn.Conv2d(channels, channels, 3, padding=1, bias=False), nn.BatchNorm2d(channels),
        )  # fmt: skip

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.layers(x)
        return torch.relu(x + y)


def resnet20() -> Model:
    """ResNet-20's depth at two channels: a stem, nine blocks, pooling, a classifier; 19 batch norms."""

    def build() -> nn.Module:
        return nn.Sequential(
            nn.Conv2d(1, 2, 3, padding=1), nn.BatchNorm2d(2), nn.ReLU(),
            *(Block(2) for _ in range(9)),
            nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(2, CLASSES),
        )  # fmt: skip

    return from_module(seeded(build, 0))


def plain20() -> Model:
    """Twenty convolutions with batch norm and no shortcut."""

    def build() -> nn.Module:
        layers: list[nn.Module] = []
        for number in range(20):
            layers += [nn.Conv2d(2 if number else 1, 2, 3, padding=1), nn.BatchNorm2d(2), nn.ReLU()]
        return nn.Sequential(*layers, nn.Flatten(), nn.Linear(32, CLASSES))

    return from_module(seeded(build, 0))


@pytest.mark.parametrize("name", ["fedavg", "fedbug+feddyn", "scaffold"])
def test_a_ragged_round_of_resnet20_is_finite_and_equals_sequential(name: str) -> None:
    local = LocalTraining(2, 4, SGD(0.05, weight_decay=1e-3), clip=10.0)
    assert disagreement(ALGORITHMS[name], local, resnet20(), federation((2, 9)), [[0, 1]] * 2) < TOLERANCE


def test_a_ragged_round_of_twenty_batch_norms_is_finite_and_equals_sequential() -> None:
    """One round: without shortcuts each layer multiplies rounding, and batch norm makes the map steep."""
    local = LocalTraining(1, 4, SGD(0.01), clip=1.0)
    data = federation((4, 12))
    assert disagreement(BUILT_IN["fedavg"], local, plain20(), data, [[0, 1]]) < TOLERANCE


@pytest.mark.parametrize("kind", [Sequential, Stacked])
def test_padding_beside_a_batch_of_one_sample_stays_finite_in_single_precision(
    kind: type[Sequential] | type[Stacked],
) -> None:
    """A padding row must not become infinite, because its weight 0 times inf is NaN.

    A last batch of one sample has the variance 0. A padding row with another sample would grow by 1/√ε ≈ 316
    in every batch norm, and twenty of them overflow.
    """
    data = federation((5, 9), shape=(1, 8, 8), dtype=torch.float32)
    model = from_module(seeded(lambda: resnet18((1, 8, 8), CLASSES, norm="batch", width=4), 0))
    local = LocalTraining(1, 4, SGD(0.01))
    server = train_rounds(BUILT_IN["fedavg"], local, kind(model, data), model, data, [[0, 1]])
    assert all(v.isfinite().all() for v in (*server.shared.values(), *server.buffers.values()))
