"""Run the Triton programs in Triton's interpreter, in a process of its own (test_interpreted.py).

The command line has the names of cases. For each case the program prints a line of JSON: the largest errors
of values and gradients, relative to the largest value that torch computes.
"""

import json
import os
import sys
from typing import Any

import torch
from torch import Tensor
from torch.func import grad, vmap
from torch.nn import functional as F

CLIENTS = 2
OPERATORS = (
    "convolve", "weight_gradient", "gradients", "pool", "unpool", "convolve_pool", "pooled_weight_gradient",
)  # fmt: skip
CONVOLUTIONS = {  # channels in, out, high, wide, then pairs: window, stride, padding, dilation; images
    "one channel": (1, 6, 9, 9, (3, 3), (1, 1), (0, 0), (1, 1), 4),
    "three channels, in pairs": (3, 8, 12, 12, (5, 5), (1, 1), (2, 2), (1, 1), 4),
    "three channels, striding": (3, 20, 11, 11, (3, 3), (2, 2), (2, 2), (2, 2), 4),
    "odd channels": (20, 32, 7, 7, (3, 3), (1, 1), (1, 1), (1, 1), 4),
    "plain, rows apart on the way back": (64, 32, 9, 9, (5, 5), (1, 1), (0, 0), (1, 1), 30),
    "plain, columns apart on the way back": (64, 32, 7, 9, (3, 5), (1, 1), (0, 0), (1, 1), 120),
    "padded, columns apart": (32, 16, 4, 8, (1, 5), (1, 1), (0, 2), (1, 1), 120),
    "dilated, columns apart": (32, 16, 4, 8, (1, 3), (1, 1), (0, 2), (1, 2), 120),
    "striding, columns apart": (32, 16, 3, 13, (1, 5), (1, 2), (0, 2), (1, 1), 120),
    "padded, rows apart": (64, 16, 2, 2, (3, 3), (1, 1), (1, 1), (1, 1), 70),
    "padded and dilated": (32, 16, 9, 9, (3, 3), (1, 1), (2, 2), (2, 2), 30),
    "halving": (32, 20, 8, 8, (3, 3), (2, 2), (1, 1), (1, 1), 4),
    "halving odd sides": (32, 20, 9, 9, (3, 3), (2, 2), (1, 1), (1, 1), 6),
    "halving, widely padded": (32, 16, 7, 7, (3, 3), (2, 2), (2, 2), (1, 1), 4),
    "halving, one pixel wide": (64, 16, 6, 6, (1, 1), (2, 2), (0, 0), (1, 1), 4),
    "thirds": (32, 16, 10, 10, (5, 5), (3, 3), (2, 2), (1, 1), 5),
    "fourths, dilated": (32, 16, 13, 13, (3, 3), (4, 4), (1, 1), (2, 2), 5),
    "one place": (32, 32, 1, 1, (3, 3), (1, 1), (1, 1), (1, 1), 4),
    "to one place": (32, 32, 2, 2, (3, 3), (2, 2), (1, 1), (1, 1), 4),
    "one pixel, padded and dilated": (32, 16, 5, 5, (1, 1), (1, 1), (1, 1), (2, 2), 70),
    "a very wide window": (16, 16, 3, 182, (3, 181), (1, 1), (0, 0), (1, 1), 2),
    "unlike in both directions": (32, 16, 9, 7, (3, 2), (2, 1), (1, 0), (1, 2), 4),
    "unlike, and not reaching the edge": (32, 16, 12, 5, (5, 3), (4, 2), (2, 1), (2, 1), 3),
}
FIRST = {  # channels in, out, side, window, padding, images, ReLU
    "pooled": (3, 6, 12, 5, 0, 4, True),
    "pooled, padded": (3, 20, 12, 5, 2, 3, False),
    "pooled, many channels": (4, 70, 8, 3, 2, 5, True),
}


def relative_error(value: Tensor, exact: Tensor) -> float:
    """The largest difference, relative to the largest exact value."""
    return float((value.double() - exact).abs().max() / exact.abs().max().clamp_min(1e-9))


def relative_errors(stacked: Any, reference: Any, *given: Tensor) -> list[float]:
    """The errors of a function's values and gradients by its first three arguments."""

    def values_and_gradients(function: Any, *values: Tensor) -> list[Tensor]:
        def loss(x: Tensor, w: Tensor, b: Tensor, slope: Tensor) -> tuple[Tensor, Tensor]:
            out = function(x, w, b)
            return (out * slope).sum(), out

        grads, out = vmap(grad(loss, (0, 1, 2), has_aux=True))(*values)
        return [out, *grads]

    exact = values_and_gradients(reference, *(v.double() for v in given))
    values = values_and_gradients(stacked, *given)
    return [relative_error(a, b) for a, b in zip(values, exact, strict=True)]


def convolution_errors(case: str) -> list[float]:
    """The errors of `Convolution` in one of CONVOLUTIONS, and of the input gradient with flipped weights."""
    from kedge.nn.gpu import stack_kernels as kernels
    from kedge.nn.gpu.convolution import Convolution, input_gradient_arguments

    c, k, high, wide, window, stride, padding, dilation, count = CONVOLUTIONS[case]
    how = stride, padding, dilation
    x = torch.randn(CLIENTS, count, c, high, wide)
    w, b = torch.randn(CLIENTS, k, c, *window), torch.randn(CLIENTS, k)

    def reference(x: Tensor, w: Tensor, b: Tensor | None) -> Tensor:
        return F.conv2d(x, w, b, *how)

    slope = torch.randn_like(vmap(lambda x, w: reference(x, w, None))(x, w))
    stacked: Any = Convolution.apply
    errors = relative_errors(lambda x, w, b: stacked(x, w, b, *how), reference, x, w, b, slope)
    if c % 4 == k % 4 == 0:  # as in bfloat16: the backward pass reads the weights flipped
        _, back, _ = input_gradient_arguments(x[0].shape, w[0], *how)
        flipped = w.permute(0, 1, 3, 4, 2).flatten(2).contiguous()
        grads = slope.permute(0, 1, 3, 4, 2).contiguous()
        dx = kernels.convolve(grads, flipped, None, back, True).permute(0, 1, 4, 2, 3)
        right = vmap(grad(lambda x, w, s: (reference(x, w, None) * s).sum()))(x.double(), w.double(), slope)
        errors.append(relative_error(dx, right))
    return errors


def pooling_errors(case: str) -> list[float]:
    """The errors of `PooledConvolution` in one of FIRST."""
    from kedge.nn.gpu.first_layer import PooledConvolution

    c, k, side, window, padding, count, relu = FIRST[case]
    x = torch.randn(CLIENTS, count, c, side, side)
    w, b = torch.randn(CLIENTS, k, c, window, window), torch.randn(CLIENTS, k)

    def reference(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
        out = F.max_pool2d(F.conv2d(x, w, b, padding=padding), 2)
        return out.relu() if relu else out

    def stacked(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
        apply: Any = PooledConvolution.apply
        out: Tensor = apply(x, w, b, (padding, padding), relu)[0]
        return out

    return relative_errors(stacked, reference, x, w, b, torch.randn_like(vmap(reference)(x, w, b)))


def main() -> None:
    os.environ["TRITON_INTERPRET"] = "1"
    from kedge.nn.gpu import operators, tiles
    from kedge.nn.gpu import stack_kernels as kernels
    from kedge.nn.gpu.weight_gradient_kernels import weight_gradient

    tiles.MULTIPROCESSORS = 4  # so that sums are divided into parts here, too

    def gradients(
        x: Tensor, w: Tensor, g: Tensor, geometry: list[int], back: list[int], flipped: bool
    ) -> tuple[Tensor, Tensor]:
        """Both gradients without a second stream."""
        return kernels.convolve(g, w, None, back, flipped), weight_gradient(x, g, geometry)

    kernels.gradients = gradients
    for name in OPERATORS:
        operators.LIBRARY.impl(name, getattr(operators, f"_{name}"), "CPU")
    for case in sys.argv[1:]:
        torch.manual_seed(0)
        errors = convolution_errors(case) if case in CONVOLUTIONS else pooling_errors(case)
        print(json.dumps({case: errors}), flush=True)


if __name__ == "__main__":
    main()
