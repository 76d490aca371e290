"""What is counted as a multiply-add, and the formula for a chain of layers.

Matrix products, convolutions and attention are, by the shapes of what goes in and out, with the formulas of
torch.utils.flop_counter; what is done element by element (optimizer, clip, norms, terms on the weights) is
not. For a chain of layers with f_l multiply-adds forward, of which the set T trains, a step takes
Σ f_l + Σ_{l ∈ T} f_l + Σ_{l > min T} f_l: forward, weight gradients, input gradients above the lowest layer
that trains.
"""

from collections.abc import Callable, Sequence
from math import prod
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode, flop_registry

Result = TypeVar("Result")


def convolution_backward(
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
    wanted: Sequence[bool],
    out_val: Any = None,
) -> int:
    """As many operations as forward for each gradient that is wanted, of the input and of the weight."""
    places = x if transposed else grad
    return 2 * len(places) * prod(places.shape[2:]) * weight.numel() * sum(wanted[:2])


aten = torch.ops.aten
FORMULAS: dict[Any, Callable[..., Any]] = {
    **flop_registry,
    # torch's own takes a grouped convolution's weight gradient as if it had no groups, and knows attention on
    # a GPU only.
    aten.convolution_backward: convolution_backward,
    aten._scaled_dot_product_flash_attention_for_cpu: flop_registry[aten._scaled_dot_product_flash_attention],
    aten._scaled_dot_product_flash_attention_for_cpu_backward: flop_registry[
        aten._scaled_dot_product_flash_attention_backward
    ],
}


class Counter(TorchDispatchMode):  # type: ignore[no-untyped-call]  # torch leaves it untyped
    """Adds up what passes by; FlopCounterMode's table by modules would take twice the time."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.flops = 0

    def __torch_dispatch__(
        self, function: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        given = kwargs or {}
        out = function(*args, **given)
        formula = FORMULAS.get(function._overloadpacket)
        if formula:
            self.flops += formula(*args, **given, out_val=out)
        return out


def counted(work: Callable[[], Result]) -> tuple[int, Result]:
    """The multiply-adds of some work, and what comes of it; torch's own chance stays as it was."""
    with torch.random.fork_rng(devices=[]), Counter() as counter:
        result = work()
    return counter.flops // 2, result


def forward_macs(module: nn.Module, x: Tensor) -> dict[str, int]:
    """Of one pass forward, by layer with parameters of its own."""
    with torch.no_grad(), FlopCounterMode(display=False) as seen:
        module(x)
    found, root = seen.get_flop_counts(), type(module).__name__
    layers = [k for k, layer in module.named_modules() if any(True for _ in layer.parameters(recurse=False))]
    return {k: sum(found.get(f"{root}.{k}" if k else root, {}).values()) // 2 for k in layers}


def chain_macs(forward: Sequence[int], trains: Sequence[bool]) -> int:
    """Of one step: forward, weight gradients where it trains, input gradients above the lowest that does."""
    if not any(trains):
        return sum(forward)
    weights = sum(own for own, opened in zip(forward, trains, strict=True) if opened)
    return sum(forward) + weights + sum(forward[list(trains).index(True) + 1 :])
