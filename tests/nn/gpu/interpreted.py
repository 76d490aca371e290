"""The Triton programs carried out by Triton's interpreter, in a process of its own (test_interpreted.py).

The arguments are cases. One line of JSON for each: how far values and gradients are from torch's, relative to
the largest.
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


def apart(left: Tensor, right: Tensor) -> float:
    return float((left.double() - right).abs().max() / right.abs().max().clamp_min(1e-9))


def both(own: Any, reference: Any, *given: Tensor) -> list[float]:
    """How far a function's values and gradients by its first three arguments are from another's."""

    def found(function: Any, *values: Tensor) -> list[Tensor]:
        def loss(x: Tensor, w: Tensor, b: Tensor, slope: Tensor) -> tuple[Tensor, Tensor]:
            out = function(x, w, b)
            return (out * slope).sum(), out

        slopes, out = vmap(grad(loss, (0, 1, 2), has_aux=True))(*values)
        return [out, *slopes]

    exact = found(reference, *(v.double() for v in given))
    return [apart(a, b) for a, b in zip(found(own, *given), exact, strict=True)]


def convolved(case: str) -> list[float]:
    from kedge.nn.gpu import stack_kernels as kernels
    from kedge.nn.gpu.convolution import Convolution, backwards

    c, k, high, wide, window, stride, padding, dilation, count = CONVOLUTIONS[case]
    how = stride, padding, dilation
    x = torch.randn(CLIENTS, count, c, high, wide)
    w, b = torch.randn(CLIENTS, k, c, *window), torch.randn(CLIENTS, k)

    def reference(x: Tensor, w: Tensor, b: Tensor | None) -> Tensor:
        return F.conv2d(x, w, b, *how)

    slope = torch.randn_like(vmap(lambda x, w: reference(x, w, None))(x, w))
    own: Any = Convolution.apply
    found = both(lambda x, w, b: own(x, w, b, *how), reference, x, w, b, slope)
    if c % 4 == k % 4 == 0:  # as in bfloat16: kernels for the way back are read where they lie
        _, back, _ = backwards(x[0].shape, w[0], *how)
        turned = w.permute(0, 1, 3, 4, 2).flatten(2).contiguous()
        slopes = slope.permute(0, 1, 3, 4, 2).contiguous()
        dx = kernels.convolve(slopes, turned, None, back, True).permute(0, 1, 4, 2, 3)
        right = vmap(grad(lambda x, w, s: (reference(x, w, None) * s).sum()))(x.double(), w.double(), slope)
        found.append(apart(dx, right))
    return found


def pooled(case: str) -> list[float]:
    from kedge.nn.gpu.first_layer import PooledConvolution

    c, k, side, window, padding, count, relu = FIRST[case]
    x = torch.randn(CLIENTS, count, c, side, side)
    w, b = torch.randn(CLIENTS, k, c, window, window), torch.randn(CLIENTS, k)

    def reference(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
        out = F.max_pool2d(F.conv2d(x, w, b, padding=padding), 2)
        return out.relu() if relu else out

    def own(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
        apply: Any = PooledConvolution.apply
        out: Tensor = apply(x, w, b, (padding, padding), relu)[0]
        return out

    return both(own, reference, x, w, b, torch.randn_like(vmap(reference)(x, w, b)))


def main() -> None:
    os.environ["TRITON_INTERPRET"] = "1"
    from kedge.nn.gpu import operators, tiles
    from kedge.nn.gpu import stack_kernels as kernels
    from kedge.nn.gpu import weight_gradient_kernels as weigh_kernels

    tiles.PROCESSORS = 4  # so that sums are cut into parts here, too

    def gradients(
        x: Tensor, w: Tensor, g: Tensor, geometry: list[int], back: list[int], turned: bool
    ) -> tuple[Tensor, Tensor]:
        """Without streams."""
        return kernels.convolve(g, w, None, back, turned), weigh_kernels.weigh(x, g, geometry)

    kernels.gradients = gradients
    for name in ("convolve", "weigh", "gradients", "pool", "unpool", "convolve_pool", "weigh_pooled"):
        operators.LIBRARY.impl(name, getattr(operators, f"_{name}"), "CPU")
    for case in sys.argv[1:]:
        torch.manual_seed(0)
        print(json.dumps({case: convolved(case) if case in CONVOLUTIONS else pooled(case)}), flush=True)


if __name__ == "__main__":
    main()
