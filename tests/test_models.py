"""Parameter counts and units of the papers' networks."""

from collections.abc import Callable

import pytest
import torch
from torch import nn

from kedge.core.errors import RequestError
from kedge.core.model import from_module
from kedge.models import MODELS
from kedge.models.cnn import shallow_cnn, small_cnn, standard_cnn
from kedge.models.mlp import mlp

CIFAR, TINY, MNIST = (3, 32, 32), (3, 64, 64), (1, 28, 28)


@pytest.mark.parametrize(
    ("build", "shape", "classes", "count", "units"),
    [
        (standard_cnn, CIFAR, 10, 797_962, 5),
        (standard_cnn, CIFAR, 100, 815_332, 5),
        (standard_cnn, TINY, 200, 530_888, 6),
        (shallow_cnn, MNIST, 10, 582_026, 4),
        (shallow_cnn, CIFAR, 10, 878_538, 4),
        (shallow_cnn, CIFAR, 100, 924_708, 4),
        (shallow_cnn, TINY, 200, 5_694_600, 4),
    ],
)
def test_parameters_and_units_are_the_published_ones(
    build: Callable[..., nn.Module], shape: tuple[int, ...], classes: int, count: int, units: int
) -> None:
    module = build(shape, classes)
    assert sum(p.numel() for p in module.parameters()) == count
    assert len(from_module(module).units) == units
    assert module(torch.zeros(2, *shape)).shape == (2, classes)


@pytest.mark.parametrize(
    ("build", "shape", "layers"),
    [
        (standard_cnn, CIFAR, (4_864, 102_464, 614_784, 73_920, 1_930)),
        (shallow_cnn, MNIST, (832, 51_264, 524_800, 5_130)),
    ],
)
def test_each_unit_is_a_layer_of_the_published_size(
    build: Callable[..., nn.Module], shape: tuple[int, ...], layers: tuple[int, ...]
) -> None:
    model = from_module(build(shape, 10))
    params, _ = model.init(0)
    assert tuple(sum(params[k].numel() for k in unit) for unit in model.units) == layers


@pytest.mark.parametrize("norm", ["none", "batch", "group"])
@pytest.mark.parametrize("build", [standard_cnn, shallow_cnn, small_cnn])
def test_a_norm_layer_adds_no_unit(build: Callable[..., nn.Module], norm: str) -> None:
    """It belongs to its convolution; FedBug's schedule counts units."""
    plain, normed = from_module(build(MNIST, 10)), from_module(build(MNIST, 10, norm=norm))
    assert len(normed.units) == len(plain.units)
    extra = sum(map(len, normed.units)) - sum(map(len, plain.units))
    assert extra == (0 if norm == "none" else 4)


def test_group_norm_has_two_groups() -> None:
    norms = [
        layer for layer in small_cnn(MNIST, 10, norm="group").modules() if isinstance(layer, nn.GroupNorm)
    ]
    assert [layer.num_groups for layer in norms] == [2, 2]


def test_the_perceptron_takes_samples_of_any_shape() -> None:
    module = mlp((1, 8, 8), 10, hidden=(32, 16))
    assert module(torch.zeros(3, 1, 8, 8)).shape == (3, 10)
    assert len(from_module(module).units) == 3
    assert len(from_module(mlp((5,), 2, hidden=())).units) == 1


def test_images_that_do_not_fit_are_refused() -> None:
    with pytest.raises(RequestError, match="too small"):
        standard_cnn((1, 8, 8), 10)
    with pytest.raises(RequestError, match="Use mlp"):
        shallow_cnn((16,), 10)


@pytest.mark.parametrize("name", MODELS)
def test_every_model_can_be_built_by_name(name: str) -> None:
    module = MODELS[name]((1, 28, 28), 7)
    model = from_module(module)
    assert module(torch.zeros(1, 1, 28, 28)).shape == (1, 7)
    assert len(model.units) >= 2
