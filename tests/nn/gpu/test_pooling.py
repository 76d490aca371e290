"""Pooling of stacks, with CPU functions in place of its programs: values, gradients, vmap, fused layers."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.func import grad, vmap
from torch.nn import functional as F

from kedge.nn.gpu.pooling import stacked_pooling
from kedge.nn.layers import StackedMaxPool2d
from kedge.nn.replacement import replace_layers


def largest(x: Tensor, relu: bool) -> tuple[Tensor, Tensor]:
    """The result of the program `pool`."""
    out, argmax = torch.stack([x[:, :, i::2, j::2] for i in range(2) for j in range(2)]).max(0)
    return (
        (out.relu(), torch.where(out <= 0, 4, argmax).to(torch.int8))
        if relu
        else (out, argmax.to(torch.int8))
    )


def spread(g: Tensor, argmax: Tensor) -> Tensor:
    """The result of the program `unpool`."""
    wide, places = (v.repeat_interleave(2, 2).repeat_interleave(2, 3) for v in (g, argmax))
    row, column = (torch.arange(places.shape[axis]) % 2 for axis in (2, 3))
    return torch.where(places == (2 * row[:, None] + column)[:, :, None], wide, 0)


@pytest.fixture(scope="module", autouse=True)
def on_the_cpu() -> Iterator[None]:
    library: Any = torch.library.Library("kedge", "IMPL")  # type: ignore[no-untyped-call]
    library.impl("pool", largest, "CPU")
    library.impl("unpool", spread, "CPU")
    yield
    library._destroy()


def pooled(pool: Callable[[Tensor], Tensor], x: Tensor, slope: Tensor) -> tuple[Tensor, Tensor]:
    def loss(x: Tensor, slope: Tensor) -> tuple[Tensor, Tensor]:
        out = pool(x)
        return (out * slope).sum(), out

    found: tuple[Tensor, Tensor] = vmap(grad(loss, has_aux=True))(x, slope)
    return found


@pytest.mark.parametrize("relu", [False, True])
def test_values_and_gradients_are_torchs(relu: bool) -> None:
    x, slope = torch.randn(3, 4, 5, 6, 8), torch.randn(3, 4, 5, 3, 4)

    def torchs(x: Tensor) -> Tensor:
        return F.max_pool2d(x, 2).relu() if relu else F.max_pool2d(x, 2)

    own, right = pooled(lambda x: stacked_pooling(x, relu), x, slope), pooled(torchs, x, slope)
    assert torch.equal(own[0], right[0])
    assert torch.equal(own[1], right[1])


@pytest.mark.parametrize(
    ("layer", "exchanged"),
    [
        (nn.MaxPool2d(2), True),
        (nn.MaxPool2d((2, 2), (2, 2)), True),
        (nn.MaxPool2d(2, ceil_mode=True), True),
        (nn.MaxPool2d(3, 2, 1), False),
        (nn.MaxPool2d(2, 1), False),
        (nn.MaxPool2d((1, 2)), False),
        (nn.MaxPool2d(2, dilation=2), False),
        (nn.MaxPool2d(2, return_indices=True), False),
    ],
)
def test_plain_pooling_is_exchanged_and_nothing_else(layer: nn.MaxPool2d, exchanged: bool) -> None:
    replace_layers(nn.Sequential(layer), False)
    assert (type(layer) is StackedMaxPool2d) == exchanged


@pytest.mark.parametrize("shape", [(2, 3, 8, 6), (2, 3, 7, 5), (3, 8, 8)])
def test_an_exchanged_layer_alone_is_torchs(shape: tuple[int, ...]) -> None:
    layer, x = nn.MaxPool2d(2, ceil_mode=True), torch.randn(*shape)
    expected = layer(x)
    replace_layers(nn.Sequential(layer), False)
    assert torch.equal(layer(x), expected)


def test_a_pooling_takes_the_relu_behind_it_and_no_other() -> None:
    pool, relu = nn.MaxPool2d(2), nn.ReLU()
    network = nn.Sequential(relu, pool, relu, nn.Tanh(), pool, nn.Tanh(), nn.MaxPool2d(3), relu)
    x = torch.randn(2, 3, 20, 20)
    expected = network(x)
    replace_layers(network, False)
    kinds = [type(layer) for layer in network]
    assert kinds[:3] == [nn.ReLU, StackedMaxPool2d, nn.Identity]
    assert kinds[4:] == [StackedMaxPool2d, nn.Tanh, nn.MaxPool2d, nn.ReLU]
    assert [layer.relu for layer in network if isinstance(layer, StackedMaxPool2d)] == [True, False]
    assert torch.equal(network(x), expected)
