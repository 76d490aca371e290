"""A first convolution with its pooling, with CPU functions in place of the program: values, gradients, vmap.

Also: which layers are fused.
"""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from tests.nn.gpu.test_convolution import convolve, weight_gradient
from tests.nn.gpu.test_pooling import largest, spread
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap
from torch.nn import functional as F

from kedge.nn import layers
from kedge.nn.gpu.first_layer import PooledConvolution, can_fuse_pooling, stacked_pooled_convolution
from kedge.nn.layers import StackedConv2d
from kedge.nn.replacement import replace_layers


def convolve_pool(
    x: Tensor, w: Tensor, bias: Tensor | None, geometry: list[int], relu: bool
) -> tuple[Tensor, Tensor]:
    """The result of the program `convolve_pool`, by a convolution and a pooling."""
    added = None if bias is None else bias.repeat(1, 2)
    twos = convolve(x, w, added, geometry, False)
    return largest(twos.view(*twos.shape[:3], -1, twos.shape[4] // 2), relu)


def pooled_weight_gradient(x: Tensor, g: Tensor, argmax: Tensor, geometry: list[int]) -> Tensor:
    grads = spread(g, argmax)
    return weight_gradient(x, grads.view(*grads.shape[:3], geometry[-1], -1), geometry)


@pytest.fixture(scope="module", autouse=True)
def on_the_cpu() -> Iterator[None]:
    library: Any = torch.library.Library("kedge", "IMPL")  # type: ignore[no-untyped-call]
    for function in (convolve_pool, pooled_weight_gradient, convolve):
        library.impl(function.__name__, function, "CPU")
    library.impl("unpool", spread, "CPU")
    yield
    library._destroy()


@pytest.mark.parametrize("wanted", [(1, 2), (0,), (0, 1, 2)])
@pytest.mark.parametrize("relu", [False, True])
@pytest.mark.parametrize(("channels", "window", "padding"), [(3, 5, 0), (4, 3, 2), (2, 5, 2)])
def test_it_is_torchs(channels: int, window: int, padding: int, relu: bool, wanted: tuple[int, ...]) -> None:
    x = torch.randn(2, 3, channels, 12, 12, dtype=torch.float64)
    w = torch.randn(2, 5, channels, window, window, dtype=torch.float64)
    b = torch.randn(2, 5, dtype=torch.float64)
    assert can_fuse_pooling(x[0], w[0], (1, 1), (padding, padding), (1, 1))

    def torchs(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
        out = F.max_pool2d(F.conv2d(x, w, b, padding=padding), 2)
        return out.relu() if relu else out

    def stacked(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
        out: Tensor = PooledConvolution.apply(x, w, b, (padding, padding), relu)[0]  # type: ignore[no-untyped-call]
        return out

    slope = torch.randn_like(vmap(torchs)(x, w, b))

    def gradients_and_values(convolution: Callable[..., Tensor]) -> Any:
        def loss(x: Tensor, w: Tensor, b: Tensor, slope: Tensor) -> tuple[Tensor, Tensor]:
            out = convolution(x, w, b)
            return (out * slope).sum(), out

        return vmap(grad(loss, wanted, has_aux=True))(x, w, b, slope)

    (mine, out), (right, exact) = gradients_and_values(stacked), gradients_and_values(torchs)
    torch.testing.assert_close(out, exact, rtol=1e-12, atol=1e-12)
    for left, other in zip(mine, right, strict=True):
        torch.testing.assert_close(left, other, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(
    ("channels", "side", "stride", "padding", "dilation"),
    [
        (5, 12, 1, 0, 1),
        (3, 13, 1, 0, 1),
        (3, 12, 2, 0, 1),
        (3, 12, 1, 1, 1),
        (3, 12, 1, 0, 2),
        (3, 11, 1, 2, 1),
    ],
)
def test_what_does_not_come_in_pairs_is_left(
    channels: int, side: int, stride: int, padding: int, dilation: int
) -> None:
    x, w = torch.zeros(2, channels, side, side), torch.zeros(4, channels, 5, 5)
    assert not can_fuse_pooling(x, w, *((v, v) for v in (stride, padding, dilation)))


def network() -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(3, 6, 5), nn.MaxPool2d(2), nn.ReLU(), nn.Conv2d(6, 4, 3), nn.ReLU(), nn.MaxPool2d(2)
    )


def test_a_convolution_takes_the_pooling_behind_it_and_no_name_changes() -> None:
    plain, joined = network(), network()
    joined.load_state_dict(plain.state_dict())
    replace_layers(joined, False)
    first, second = joined[0], joined[3]
    assert isinstance(first, StackedConv2d)
    assert isinstance(second, StackedConv2d)
    assert first.pooling[0].relu
    assert not second.pooling  # its ReLU is before the pooling
    assert list(joined.state_dict()) == list(plain.state_dict())
    x = torch.randn(2, 3, 16, 16)
    assert torch.equal(joined(x), plain(x))


def test_a_convolution_that_stands_elsewhere_too_is_left() -> None:
    shared = nn.Conv2d(3, 3, 3, padding=1)
    model = nn.Sequential(nn.Sequential(shared, nn.MaxPool2d(2)), shared)
    replace_layers(model, False)
    assert isinstance(shared, StackedConv2d)
    assert not shared.pooling


def test_in_a_stack_the_layer_takes_the_program(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(layers, "uses_triton", lambda v: True)
    went: list[bool] = []

    def watched(*given: Any) -> Tensor:
        went.append(given[-1])
        return stacked_pooled_convolution(*given)

    monkeypatch.setattr(layers, "stacked_pooled_convolution", watched)
    model = nn.Sequential(nn.Conv2d(3, 6, 5), nn.MaxPool2d(2), nn.ReLU()).double()
    x = torch.randn(2, 4, 3, 12, 12, dtype=torch.float64)
    expected = torch.stack([model(own) for own in x])
    replace_layers(model, False)
    params = {k: v.detach().expand(2, *v.shape) for k, v in model.named_parameters()}
    found = vmap(lambda params, x: functional_call(model, params, x))(params, x)
    assert went == [True]
    torch.testing.assert_close(found, expected.detach(), rtol=1e-12, atol=1e-12)
