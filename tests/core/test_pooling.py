"""Pooling of stacks: its forward pass, its rule under vmap, its gradient with a stand-in for the program."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.func import grad, vmap
from torch.nn import functional as F

from kedge.core.layers import StackedMaxPool2d, exchange_layers
from kedge.core.pooling import stacked_pooling


def spread(g: Tensor, which: Tensor) -> Tensor:
    """What the program of `unpool` does."""
    wide, places = (v.repeat_interleave(2, 2).repeat_interleave(2, 3) for v in (g, which))
    row, column = (torch.arange(places.shape[axis]) % 2 for axis in (2, 3))
    return torch.where(places == (2 * row[:, None] + column)[:, :, None], wide, 0)


@pytest.fixture(scope="module", autouse=True)
def on_the_cpu() -> Iterator[None]:
    library: Any = torch.library.Library("kedge", "IMPL")  # type: ignore[no-untyped-call]
    library.impl("unpool", spread, "CPU")
    yield
    library._destroy()


def pooled(pool: Callable[[Tensor], Tensor], x: Tensor, slope: Tensor) -> tuple[Tensor, Tensor]:
    def loss(x: Tensor, slope: Tensor) -> tuple[Tensor, Tensor]:
        out = pool(x)
        return (out * slope).sum(), out

    found: tuple[Tensor, Tensor] = vmap(grad(loss, has_aux=True))(x, slope)
    return found


def test_values_and_gradients_are_torchs_also_among_equals() -> None:
    x = torch.randn(3, 4, 5, 6, 8).mul(2).round()
    slope = torch.randn(3, 4, 5, 3, 4)
    own, right = pooled(stacked_pooling, x, slope), pooled(lambda x: F.max_pool2d(x, 2), x, slope)
    assert torch.equal(own[0], right[0])
    assert torch.equal(own[1], right[1])


def test_what_is_no_number_stays_none() -> None:
    x = torch.zeros(1, 1, 1, 4, 4)
    x[..., 1, 2] = torch.nan
    out = stacked_pooling(x[0])
    assert torch.equal(out.isnan(), F.max_pool2d(x[0], 2).isnan())


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
    exchange_layers(nn.Sequential(layer), False)
    assert (type(layer) is StackedMaxPool2d) == exchanged


@pytest.mark.parametrize("shape", [(2, 3, 8, 6), (2, 3, 7, 5), (3, 8, 8)])
def test_an_exchanged_layer_alone_is_torchs(shape: tuple[int, ...]) -> None:
    layer, x = nn.MaxPool2d(2, ceil_mode=True), torch.randn(*shape)
    expected = layer(x)
    exchange_layers(nn.Sequential(layer), False)
    assert torch.equal(layer(x), expected)
