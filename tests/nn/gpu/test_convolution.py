"""Convolution of stacks, with CPU functions in place of its programs: layouts, geometry, gradients, vmap."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.func import grad, vmap
from torch.nn import functional as F
from torch.nn.grad import conv2d_weight

from kedge.nn.gpu.convolution import Convolution, padded_channels, stacked_convolution

CASES = {  # channels in, out, side, window, stride, padding, dilation
    "plain": (3, 4, 8, 5, 1, 0, 1),
    "padded": (4, 6, 6, 3, 1, 1, 1),
    "halving": (4, 8, 7, 3, 2, 1, 1),
    "one pixel wide, halving": (4, 8, 6, 1, 2, 0, 1),
    "dilated": (2, 3, 11, 3, 2, 2, 2),
    "one place, padded": (5, 5, 1, 3, 1, 1, 1),
    "to one place": (4, 6, 2, 3, 2, 1, 1),
    "one place, wide window": (4, 6, 1, 5, 3, 2, 1),
    "one place, dilated": (4, 6, 3, 3, 1, 4, 4),
    "wide padding": (2, 3, 4, 2, 1, 3, 1),
}
flips: list[bool] = []  # the argument `flipped` of every call of `convolve`
window_sizes: list[tuple[int, int]] = []  # of every call of `weight_gradient`


def convolve(x: Tensor, w: Tensor, bias: Tensor | None, geometry: list[int], flipped: bool) -> Tensor:
    """The result of the program `convolve`, computed for one client after another."""
    kh, kw, sh, sw, uh, uw, ph, pw, dh, dw, p, q = geometry
    flips.append(flipped)
    outs = []
    for number, (images, kernel) in enumerate(zip(x.double(), w.double(), strict=True)):
        n, high, wide, c = images.shape
        upsampled = images.new_zeros(n, (high - 1) * uh + 1, (wide - 1) * uw + 1, c)
        upsampled[:, ::uh, ::uw] = images
        bottom, right = (
            (out - 1) * step + d * (k - 1) + 1 - pad - size
            for out, step, d, k, pad, size in zip(
                (p, q), (sh, sw), (dh, dw), (kh, kw), (ph, pw), upsampled.shape[1:3], strict=True
            )
        )
        padded = F.pad(upsampled.permute(0, 3, 1, 2), (pw, right, ph, bottom))
        if flipped:
            own = kernel.view(c, kh, kw, -1).permute(3, 0, 1, 2).flip(2, 3)
        else:
            own = kernel.view(-1, kh, kw, c).permute(0, 3, 1, 2)
        out = F.conv2d(padded, own, None if bias is None else bias[number].double(), (sh, sw), 0, (dh, dw))
        outs.append(out.permute(0, 2, 3, 1))
    return torch.stack(outs).to(x.dtype).contiguous()


def weight_gradient(x: Tensor, g: Tensor, geometry: list[int]) -> Tensor:
    kh, kw, sh, sw, _, _, ph, pw, dh, dw, p, q = geometry
    window_sizes.append((kh, kw))
    found = []
    for images, grads in zip(x.double(), g.double(), strict=True):
        shape = grads.shape[3], images.shape[3], kh, kw
        bottom = (p - 1) * sh + dh * (kh - 1) + 1 - ph - images.shape[1]
        right = (q - 1) * sw + dw * (kw - 1) + 1 - pw - images.shape[2]
        padded = F.pad(images.permute(0, 3, 1, 2), (pw, right, ph, bottom))
        channels_first = grads.permute(0, 3, 1, 2)
        own = conv2d_weight(padded, shape, channels_first, (sh, sw), 0, (dh, dw))  # type: ignore[no-untyped-call]
        found.append(own.permute(0, 2, 3, 1).flatten(1))
    return torch.stack(found).to(x.dtype)


def gradients(
    x: Tensor, w: Tensor, g: Tensor, geometry: list[int], back: list[int], flipped: bool
) -> tuple[Tensor, Tensor]:
    return convolve(g, w, None, back, flipped), weight_gradient(x, g, geometry)


@pytest.fixture(scope="module", autouse=True)
def on_the_cpu() -> Iterator[None]:
    library: Any = torch.library.Library("kedge", "IMPL")  # type: ignore[no-untyped-call]
    for function in (convolve, weight_gradient, gradients):
        library.impl(function.__name__, function, "CPU")
    yield
    library._destroy()


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
@pytest.mark.parametrize("wanted", [(0,), (1,), (2,), (0, 1), (0, 1, 2)])
@pytest.mark.parametrize("case", CASES)
def test_it_is_torchs(case: str, wanted: tuple[int, ...], dtype: torch.dtype) -> None:
    c, k, side, window, stride, padding, dilation = CASES[case]
    how = (stride, stride), (padding, padding), (dilation, dilation)
    x = torch.randn(2, 3, c, side, side).to(dtype)
    w = torch.randn(2, k, c, window, window).to(dtype)
    b = torch.randn(2, k, dtype=torch.float64)
    slope = torch.randn_like(vmap(lambda x, w: F.conv2d(x, w, None, *how))(x.double(), w.double())).to(dtype)

    def gradients_and_values(convolution: Callable[..., Tensor], *given: Tensor) -> tuple[Any, Tensor]:
        def loss(x: Tensor, w: Tensor, b: Tensor, slope: Tensor) -> tuple[Tensor, Tensor]:
            out = convolution(x, w, b, *how)
            return (out.double() * slope).sum(), out

        both: tuple[Any, Tensor] = vmap(grad(loss, wanted, has_aux=True))(*given)
        return both

    own, out = gradients_and_values(Convolution.apply, x, w, b, slope)
    exact, right = gradients_and_values(F.conv2d, x.double(), w.double(), b, slope.double())
    tolerance = 1e-12 if dtype == torch.float64 else 1e-2
    for left, other in zip((out, *own), (right, *exact), strict=True):
        assert float((left.double() - other).abs().max()) <= tolerance * float(
            other.abs().max().clamp_min(1e-9)
        )


@pytest.mark.parametrize(
    ("case", "part"),
    [
        ("padded", 3),
        ("one place, padded", 1),
        ("to one place", 2),
        ("one place, wide window", 1),
        ("dilated", 3),
    ],
)
def test_places_that_only_see_padding_are_not_weighed(case: str, part: int) -> None:
    c, k, side, window, stride, padding, dilation = CASES[case]
    how = (stride, stride), (padding, padding), (dilation, dilation)
    x, w = torch.randn(2, c, side, side), torch.randn(k, c, window, window)
    window_sizes.clear()
    grad(lambda w: stacked_convolution(x, w, None, *how).sum())(w)
    assert window_sizes == [(part, part)]


def test_bfloat16_reads_a_kernel_for_the_way_back_where_it_lies() -> None:
    flips.clear()
    for dtype in (torch.float32, torch.bfloat16):
        x, w = (torch.randn(*s, dtype=dtype) for s in ((2, 2, 4, 4), (3, 2, 3, 3)))
        grad(lambda x, w: stacked_convolution(x, w, None, (1, 1), (0, 0), (1, 1)).float().sum())(x, w)
    assert flips == [False, False, False, True]


def test_channels_are_filled_up_to_what_is_read_at_once() -> None:
    assert padded_channels(torch.ones(2, 3)).tolist() == [[1, 1, 1, 0]] * 2
    assert padded_channels(four := torch.ones(2, 4)) is four
