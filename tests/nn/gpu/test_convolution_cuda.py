"""On a GPU: convolution and pooling of a stack of clients and their gradients, against torch's."""

from copy import deepcopy

import pytest
import torch
from torch import Tensor, nn
from torch.func import grad, vmap
from torch.nn import functional as F

from kedge.nn.gpu.convolution import stacked_convolution
from kedge.nn.gpu.first_layer import can_fuse_pooling, stacked_pooled_convolution
from kedge.nn.gpu.operators import has_triton, uses_triton
from kedge.nn.layers import StackedMaxPool2d
from kedge.nn.precision import computing_in
from kedge.nn.replacement import replace_layers

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
    pytest.mark.skipif(not has_triton(), reason="no Triton"),
]
CASES = {  # channels in, out, side, window, stride, padding, dilation
    "standard CNN, first": (3, 64, 32, 5, 1, 0, 1),
    "standard CNN, second": (64, 64, 14, 5, 1, 0, 1),
    "halving": (64, 128, 16, 3, 2, 1, 1),
    "padded": (128, 128, 8, 3, 1, 1, 1),
    "padded, few channels": (16, 16, 9, 3, 1, 1, 1),
    "thirds": (32, 16, 10, 5, 3, 2, 1),
    "fourths, dilated": (32, 16, 13, 3, 4, 1, 2),
    "one pixel wide, halving": (64, 128, 8, 1, 2, 0, 1),
    "few channels": (1, 6, 28, 5, 1, 2, 1),
    "odd channels": (20, 50, 12, 5, 1, 0, 1),
    "dilated": (16, 24, 15, 3, 2, 2, 2),
    "one place, padded": (512, 512, 1, 3, 1, 1, 1),
    "to one place": (256, 512, 2, 3, 2, 1, 1),
}
# Relative to the largest value: tf32 keeps 10 bits of a factor; bfloat16 keeps 7, and 7 of the result.
TOLERANCES = {torch.float32: 2e-3, torch.bfloat16: 8e-3}


def relative_error(value: Tensor, exact: Tensor) -> float:
    """The largest difference, relative to the largest exact value."""
    return float((value.double() - exact).abs().max() / exact.abs().max())


@pytest.mark.parametrize("dtype", TOLERANCES, ids=["tf32", "bf16"])
@pytest.mark.parametrize("case", CASES)
def test_a_stack_convolves_as_each_client_alone(case: str, dtype: torch.dtype) -> None:
    c, k, side, window, stride, padding, dilation = CASES[case]
    make = torch.Generator("cuda").manual_seed(0)
    x = torch.randn(4, 50, c, side, side, device="cuda", generator=make).to(dtype)
    w = torch.randn(4, k, c, window, window, device="cuda", generator=make) / (c * window**2) ** 0.5
    b = torch.randn(4, k, device="cuda", generator=make)
    how = (stride, stride), (padding, padding), (dilation, dilation)
    went: list[bool] = []

    def stacked(x: Tensor, w: Tensor, b: Tensor, slope: Tensor) -> tuple[Tensor, Tensor]:
        went.append(uses_triton(x) and uses_triton(w))
        out = stacked_convolution(x, w, b, *how)
        return (out * slope).sum().float(), out

    def reference(x: Tensor, w: Tensor, b: Tensor, slope: Tensor) -> tuple[Tensor, Tensor]:
        out = F.conv2d(x, w, b, *how)
        return (out * slope).sum(), out

    shape = vmap(lambda x, w: F.conv2d(x, w, None, *how))(x, w.to(dtype))
    slope = torch.randn(shape.shape, device="cuda", generator=make).to(dtype)
    with computing_in("tf32"):
        (dx, dw, db), out = vmap(grad(stacked, (0, 1, 2), has_aux=True))(x, w, b, slope)
    exact = x.double(), w.to(dtype).double(), b.double(), slope.double()
    (rx, rw, rb), right = vmap(grad(reference, (0, 1, 2), has_aux=True))(*exact)
    assert went == [True]
    assert (out.dtype, dx.dtype, dw.dtype, db.dtype) == (dtype, dtype, torch.float32, torch.float32)
    assert relative_error(out, right) < TOLERANCES[dtype]
    assert relative_error(dx, rx) < TOLERANCES[dtype]
    assert relative_error(dw, rw) < TOLERANCES[dtype]
    assert relative_error(db, rb) < TOLERANCES[dtype]


@pytest.mark.parametrize("dtype", TOLERANCES, ids=["tf32", "bf16"])
@pytest.mark.parametrize("relu", [False, True])
@pytest.mark.parametrize(("channels", "out", "padding"), [(3, 64, 0), (1, 6, 2), (3, 80, 2)])
def test_a_first_layer_is_pooled_as_it_is_made(
    channels: int, out: int, padding: int, relu: bool, dtype: torch.dtype
) -> None:
    """Values have few bits; otherwise rounding could make another of two nearly equal values the largest."""
    make = torch.Generator("cuda").manual_seed(0)
    x = torch.randn(4, 50, channels, 32, 32, device="cuda", generator=make).bfloat16().to(dtype)
    w = torch.randn(4, out, channels, 5, 5, device="cuda", generator=make) / (channels * 25) ** 0.5
    w = w.bfloat16().float()
    b = torch.randn(4, out, device="cuda", generator=make)

    def stacked(x: Tensor, w: Tensor, b: Tensor, slope: Tensor) -> tuple[Tensor, Tensor]:
        assert can_fuse_pooling(x, w, (1, 1), (padding, padding), (1, 1))
        found = stacked_pooled_convolution(x, w, b, (padding, padding), relu)
        return (found * slope).sum().float(), found

    def reference(x: Tensor, w: Tensor, b: Tensor, slope: Tensor) -> tuple[Tensor, Tensor]:
        found = F.max_pool2d(F.conv2d(x, w, b, padding=padding), 2)
        found = found.relu() if relu else found
        return (found * slope).sum(), found

    side = (28 + 2 * padding) // 2
    slope = torch.randn(4, 50, out, side, side, device="cuda", generator=make).to(dtype)
    with computing_in("tf32"):
        (dx, dw, db), found = vmap(grad(stacked, (0, 1, 2), has_aux=True))(x, w, b, slope)
    exact = x.double(), w.to(dtype).double(), b.double(), slope.double()
    (rx, rw, rb), right = vmap(grad(reference, (0, 1, 2), has_aux=True))(*exact)
    assert relative_error(found, right) < TOLERANCES[dtype]
    assert float((dx.double() - rx).norm() / rx.norm()) < 2 * TOLERANCES[dtype]
    assert relative_error(dw, rw) < TOLERANCES[dtype]
    assert relative_error(db, rb) < TOLERANCES[dtype]


@pytest.mark.parametrize("dtype", TOLERANCES, ids=["tf32", "bf16"])
@pytest.mark.parametrize("channels", [64, 5, 200])
@pytest.mark.parametrize("relu", [False, True])
def test_a_stack_pools_as_torch_does(relu: bool, channels: int, dtype: torch.dtype) -> None:
    make = torch.Generator("cuda").manual_seed(0)
    x = (
        torch.randn(3, 7, channels, 10, 6, device="cuda", generator=make).mul(2).round().to(dtype)
    )  # some equal
    x[0, 0, 0, :2, :4] = torch.nan
    slope = torch.randn(3, 7, channels, 5, 3, device="cuda", generator=make).to(dtype)
    layers = nn.Sequential(nn.MaxPool2d(2), *[nn.ReLU()] * relu)
    plain = deepcopy(layers)
    replace_layers(layers, False)
    assert type(layers[0]) is StackedMaxPool2d

    def values_and_gradients(pool: nn.Module) -> tuple[Tensor, Tensor]:
        def loss(x: Tensor, slope: Tensor) -> tuple[Tensor, Tensor]:
            out = pool(x)
            return (out * slope).float().sum(), out

        found: tuple[Tensor, Tensor] = vmap(grad(loss, has_aux=True))(x, slope)
        return found

    with computing_in("tf32"):
        stacked = values_and_gradients(layers)
    for left, right in zip(stacked, values_and_gradients(plain), strict=True):
        assert torch.equal(left.nan_to_num(7.0), right.nan_to_num(7.0))


@pytest.mark.parametrize("dtype", TOLERANCES, ids=["tf32", "bf16"])
def test_what_is_no_number_is_none_behind_a_first_layer(dtype: torch.dtype) -> None:
    x, w, b = (torch.randn(*shape, device="cuda") for shape in ((2, 3, 3, 12, 12), (2, 8, 3, 5, 5), (2, 8)))
    x[0, 0, 0, 0, 0] = torch.nan

    def plain(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
        return F.max_pool2d(F.conv2d(x, w, b), 2).relu()

    def stacked(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
        return stacked_pooled_convolution(x, w, b, (0, 0), True)

    with computing_in("tf32"):
        found = vmap(stacked)(x.to(dtype), w, b)
    assert torch.equal(found.isnan(), vmap(plain)(x, w, b).isnan())


def test_exact_precisions_keep_torchs_convolution() -> None:
    taken: list[bool] = []

    def record(x: Tensor) -> Tensor:
        taken.append(uses_triton(x))
        return x.clone()

    with computing_in("fp32"):
        for dtype in (torch.float32, torch.float64):
            vmap(record)(torch.zeros(2, 1, 3, 8, 8, dtype=dtype, device="cuda"))
        assert taken == [False, False]


def test_one_model_alone_keeps_torchs_convolution() -> None:
    x, w = (torch.zeros(4, 3, 8, 8, dtype=torch.bfloat16, device="cuda") for _ in range(2))
    taken: list[bool] = []

    def record(w: Tensor, x: Tensor) -> Tensor:
        taken.append(uses_triton(x) and uses_triton(w))
        return w.float().sum()

    record(w, x)
    grad(record)(w, x)  # gradients alone make no stack
    vmap(record, (None, 0))(w, x[:, None])  # nor do images of many clients for one kernel
    assert taken == [False, False, False]
