"""The effect of rounding alone on a network's update: the tolerance for networks that amplify rounding.

The network trains in float64. Every operand of a convolution or a linear layer, in the forward and the
backward pass, gets a relative error of at most the rounding unit of the precision. The errors are
pseudo-random functions of the operands. Nothing else of kedge's low precisions is used, so that the distance
to the reference is the effect of rounding on this network and not an error of an engine.
"""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

# A tensor core truncates a float32 operand to 10 bits: an error of up to 2^-10. bfloat16 rounds to 7 bits.
UNITS = {"fp64": 0.0, "fp32": 2.0**-24, "tf32": 2.0**-10, "bf16": 2.0**-8}
DRAWS = 10


def with_relative_errors(x: Tensor, unit: float, draw: int) -> Tensor:
    """The values with relative errors of at most `unit`, which depend on the values and on `draw`."""
    noise = 2 * torch.frac(x.abs() * (1e9 + 7919.77 * (draw + 0.5))) - 1
    return x * (1 + unit * noise)


class RoundingConv2d(nn.Conv2d):
    """A convolution that rounds its operands and its output's gradient."""

    unit: float
    draw: int

    def forward(self, x: Tensor) -> Tensor:
        x, weight = (rounded_operand(v, self.unit, self.draw) for v in (x, self.weight))
        out = F.conv2d(x, weight, self.bias, self.stride, self.padding, self.dilation, self.groups)
        return with_rounded_gradient(out, self.unit, self.draw)


class RoundingLinear(nn.Linear):
    """A linear layer that rounds its operands and its output's gradient."""

    unit: float
    draw: int

    def forward(self, x: Tensor) -> Tensor:
        x, weight = (rounded_operand(v, self.unit, self.draw) for v in (x, self.weight))
        return with_rounded_gradient(F.linear(x, weight, self.bias), self.unit, self.draw)


def rounded_operand(x: Tensor, unit: float, draw: int) -> Tensor:
    """The rounded value; its gradient passes unchanged."""
    return x + (with_relative_errors(x, unit, draw) - x).detach()


def with_rounded_gradient(x: Tensor, unit: float, draw: int) -> Tensor:
    """The value unchanged. Its gradient is rounded in the backward pass."""
    if x.requires_grad:
        x.register_hook(lambda gradient: with_relative_errors(gradient, unit, draw))  # type: ignore[no-untyped-call]
    return x


def rounding_module(module: nn.Module, precision: str, draw: int) -> nn.Module:
    """Replace the module's convolutions and linear layers by layers that round as in `precision`."""
    kinds: dict[type, type] = {nn.Conv2d: RoundingConv2d, nn.Linear: RoundingLinear}
    for layer in module.modules():
        if type(layer) in kinds:
            layer.__class__ = kinds[type(layer)]
            vars(layer).update(unit=UNITS[precision], draw=draw)
    return module
