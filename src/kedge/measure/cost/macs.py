"""Multiply-adds (MACs): a counter for any computation, and the formula for a chain of layers.

The counter includes matrix products, convolutions and attention, with the formulas of
torch.utils.flop_counter. It ignores elementwise work: optimizer, gradient clipping, norms, terms on weights.
For a chain of layers with f_l MACs forward, of which the set T trains, a training step takes Σ f_l + Σ_{l ∈
T} f_l + Σ_{l > min T} f_l: forward pass, weight gradients, and input gradients above the lowest trainable
layer.
"""

from collections.abc import Callable, Sequence
from math import prod
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode, flop_registry

from kedge.torch_private import TorchDispatchMode

Result = TypeVar("Result")


def convolution_backward(  # noqa: PLR0913  # torch's signature
    grad: Tensor,
    x: Tensor,
    weight: Tensor,
    bias: Sequence[int] | None,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    transposed: bool,
    output_padding: Sequence[int],
    groups: int,
    output_mask: Sequence[bool],
    out_val: Any = None,
) -> int:
    """FLOPs of the gradients in `output_mask`, by input or weight: each takes those of the forward pass."""
    positions = x if transposed else grad
    return 2 * len(positions) * prod(positions.shape[2:]) * weight.numel() * sum(output_mask[:2])


aten = torch.ops.aten
FORMULAS: dict[Any, Callable[..., Any]] = {
    **flop_registry,
    # torch's formulas ignore the groups in a convolution's weight gradient and lack attention on a CPU.
    aten.convolution_backward: convolution_backward,
    aten._scaled_dot_product_flash_attention_for_cpu: flop_registry[aten._scaled_dot_product_flash_attention],
    aten._scaled_dot_product_flash_attention_for_cpu_backward: flop_registry[
        aten._scaled_dot_product_flash_attention_backward
    ],
}


class Counter(TorchDispatchMode):  # type: ignore[no-untyped-call]  # torch leaves it untyped
    """Sums the FLOPs of all operators called; FlopCounterMode takes twice the time, as it tracks modules."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.flops = 0

    def __torch_dispatch__(
        self, function: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        options = kwargs or {}
        out = function(*args, **options)
        formula = FORMULAS.get(function._overloadpacket)
        if formula:
            self.flops += formula(*args, **options, out_val=out)
        return out


def count_macs(work: Callable[[], Result]) -> tuple[int, Result]:
    """Run `work`; return its multiply-adds and its result. torch's random state does not change."""
    with torch.random.fork_rng(devices=[]), Counter() as counter:
        result = work()
    return counter.flops // 2, result


def forward_macs(module: nn.Module, x: Tensor) -> dict[str, int]:
    """Multiply-adds of a forward pass, for each layer with its own parameters."""
    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        module(x)
    flops, root = counter.get_flop_counts(), type(module).__name__
    layers = [k for k, layer in module.named_modules() if any(True for _ in layer.parameters(recurse=False))]
    return {k: sum(flops.get(f"{root}.{k}" if k else root, {}).values()) // 2 for k in layers}


def chain_macs(forward: Sequence[int], trains: Sequence[bool]) -> int:
    """Multiply-adds of a training step of a chain of layers, by the formula above."""
    if not any(trains):
        return sum(forward)
    weights = sum(macs for macs, trainable in zip(forward, trains, strict=True) if trainable)
    return sum(forward) + weights + sum(forward[list(trains).index(True) + 1 :])
