"""How far rounding alone can move a network's update: the zoo's yardstick for networks that amplify it.

The network trains in float64, but every operand of a convolution and of a linear layer, in the forward and
the backward pass, is first changed by a relative error of at most the precision's rounding unit. The errors
are pseudo-random functions of the operands. Nothing else of kedge's low precisions takes part, so the
distance to the reference is what rounding does to this network, and not what an engine does.
"""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

# A tensor core truncates a float32 operand to 10 bits: an error of up to 2^-10. bfloat16 rounds to 7 bits.
UNITS = {"fp64": 0.0, "fp32": 2.0**-24, "tf32": 2.0**-10, "bf16": 2.0**-8}
DRAWS = 10


def moved(x: Tensor, unit: float, draw: int) -> Tensor:
    """The values with relative errors of at most `unit`, which are functions of the values and of `draw`."""
    noise = 2 * torch.frac(x.abs() * (1e9 + 7919.77 * (draw + 0.5))) - 1
    return x * (1 + unit * noise)


class RoundingConv2d(nn.Conv2d):
    """A convolution that rounds its operands and its output's gradient."""

    unit: float
    draw: int

    def forward(self, x: Tensor) -> Tensor:
        x, weight = (operand(v, self.unit, self.draw) for v in (x, self.weight))
        out = F.conv2d(x, weight, self.bias, self.stride, self.padding, self.dilation, self.groups)
        return with_rounded_gradient(out, self.unit, self.draw)


class RoundingLinear(nn.Linear):
    """A linear layer that rounds its operands and its output's gradient."""

    unit: float
    draw: int

    def forward(self, x: Tensor) -> Tensor:
        x, weight = (operand(v, self.unit, self.draw) for v in (x, self.weight))
        return with_rounded_gradient(F.linear(x, weight, self.bias), self.unit, self.draw)


def operand(x: Tensor, unit: float, draw: int) -> Tensor:
    """The rounded value; its gradient passes unchanged."""
    return x + (moved(x, unit, draw) - x).detach()


def with_rounded_gradient(x: Tensor, unit: float, draw: int) -> Tensor:
    """The value unchanged; its gradient is rounded before it goes on."""
    if x.requires_grad:
        x.register_hook(lambda gradient: moved(gradient, unit, draw))  # type: ignore[no-untyped-call]
    return x


def rounding_module(module: nn.Module, precision: str, draw: int) -> nn.Module:
    """The module, in which convolutions and linear layers now round as in this precision."""
    kinds: dict[type, type] = {nn.Conv2d: RoundingConv2d, nn.Linear: RoundingLinear}
    for layer in module.modules():
        if type(layer) in kinds:
            layer.__class__ = kinds[type(layer)]
            vars(layer).update(unit=UNITS[precision], draw=draw)
    return module
