"""Multiply-adds of the kernel as autograd really runs it: matrix products, convolutions, attention.

The kernel itself runs on a sample or three while torch.utils.flop_counter watches: every pass that a method
adds is counted, and nothing that a frozen layer saves (no weight gradient for it, no input gradient at or
below the lowest layer that trains). A step on n samples costs a + b·n + c·n² (b the network, a products of
weights alone, c products of samples with each other), which three sizes tell. What is done element by
element (optimizer, clip, norms, terms on the weights) is not counted.

For a chain of layers with f_l multiply-adds forward, of which the set T trains, it comes to
Σ f_l + Σ_{l ∈ T} f_l + Σ_{l > min T} f_l a sample: `chain_macs`.
"""

from collections.abc import Callable, Sequence
from math import prod
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode, flop_registry

from kedge.core.algorithm import Algorithm, Local
from kedge.core.client import by_autograd, class_means, class_sums, finish, local_step, started
from kedge.core.correction import within
from kedge.core.model import Batch, Model
from kedge.core.server import broadcast, opened
from kedge.core.tree import Leaves, cast
from kedge.data.federation import Federation

SIZES = (1, 2, 3)


def convolution_backward(
    grad: Sequence[int],
    x: Sequence[int],
    weight: Sequence[int],
    bias: Sequence[int] | None,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    transposed: bool,
    output_padding: Sequence[int],
    groups: int,
    output_mask: Sequence[bool],
    **shapes: Any,
) -> int:
    """As many as forward for each gradient that is asked for."""
    places = x if transposed else grad
    return 2 * places[0] * prod(places[2:]) * prod(weight) * sum(output_mask[:2])


aten = torch.ops.aten
FORMULAS: dict[Any, Callable[..., Any]] = {
    # torch's own counts a grouped convolution's weight gradient as if it had no groups, and knows attention
    # on a GPU only.
    aten.convolution_backward: convolution_backward,
    aten._scaled_dot_product_flash_attention_for_cpu: flop_registry[aten._scaled_dot_product_flash_attention],
    aten._scaled_dot_product_flash_attention_for_cpu_backward: flop_registry[
        aten._scaled_dot_product_flash_attention_backward
    ],
}


def counter() -> FlopCounterMode:
    """A context that counts two floating-point operations a multiply-add."""
    return FlopCounterMode(display=False, custom_mapping=FORMULAS)


def counted(work: Callable[[], object]) -> int:
    """The multiply-adds of some work; torch's own chance stays as it was."""
    with torch.random.fork_rng(devices=[]), counter() as seen:
        work()
    return int(seen.get_total_flops()) // 2


def through(values: Sequence[int], at: int) -> int:
    """The polynomial of second degree that has these values at 1, 2 and 3."""
    first, second, third = values
    rise, bend = second - first, third - 2 * second + first
    return first + rise * (at - 1) + bend * ((at - 1) * (at - 2) // 2)


class Meter:
    """One method's client, rehearsed on the CPU; every kind of step is counted once."""

    def __init__(
        self,
        algorithm: Algorithm,
        model: Model,
        local: Local,
        data: Federation,
        params: Leaves,
        buffers: Leaves,
    ) -> None:
        """`model` is as the algorithm sees it, `params` and `buffers` as a run begins with them."""
        self.algorithm, self.model, self.local, self.classes = algorithm, model, local, data.classes
        params, buffers = cast(params, data.dtype), cast(buffers, data.dtype)
        server = opened(algorithm, model, params, buffers)
        memory = {
            c.name: c.init_client(within(c, model, server.shared, server.own)) for c in algorithm.corrections
        }
        self.carry = started(local, params, buffers, memory)
        self.fixed = {
            "anchor": server.shared,
            "buffers": buffers,
            "cast": broadcast(algorithm, server),
            "facts": {k: v[0].cpu() for k, v in data.facts().items()},
            "lr": torch.tensor(local.optimizer.rate(0), dtype=data.dtype),
        }
        self.x, self.y = data.prepare(data.pool.x[:1].cpu()), data.pool.y[:1].cpu()
        self.known: dict[tuple[str, ...] | None, list[int]] = {}
        self.upload: dict[str, Any] = {}
        self.end = counted(self.rehearse_end)

    def step(self, trainable: tuple[str, ...], samples: int) -> int:
        """Of one optimizer step on so many samples, in which these leaves train."""
        if trainable not in self.known:
            self.known[trainable] = [
                counted(lambda n=n: self.rehearse_step(trainable, self.batch(n))) for n in SIZES
            ]
        return through(self.known[trainable], samples)

    def survey(self, samples: int) -> int:
        """Of the look at so many samples together that class means take."""
        if None not in self.known:
            self.known[None] = [counted(lambda n=n: self.rehearse_survey(self.batch(n))) for n in SIZES]
        return through(self.known[None], samples)

    def batch(self, samples: int) -> Batch:
        """So many copies of one sample."""
        x, y = (v.expand(samples, *v.shape[1:]).contiguous() for v in (self.x, self.y))
        return Batch(x, y, torch.ones(samples, dtype=x.dtype), torch.zeros(2, dtype=torch.int64))

    def rehearse_step(self, trainable: tuple[str, ...], batch: Batch) -> None:
        """The kernel's step as a client alone takes it."""
        local_step(
            self.algorithm, self.model, self.local, trainable, self.carry, batch, self.fixed, by_autograd
        )

    @torch.no_grad()
    def rehearse_survey(self, batch: Batch) -> Leaves:
        """The pass for class means."""
        return class_sums(self.model, self.classes, self.carry["params"], self.carry["buffers"], batch)

    @torch.no_grad()
    def rehearse_end(self) -> None:
        """The end of a round; its upload is kept for its shapes."""
        one = torch.ones_like(self.fixed["lr"])
        looked = self.algorithm.needs_class_means
        means = class_means(self.rehearse_survey(self.batch(1))) if looked else None
        times = {k: one for k in self.carry["params"]}
        _, self.upload = finish(self.algorithm, self.carry, self.fixed, one, times, means)


def forward_macs(module: nn.Module, x: Tensor) -> dict[str, int]:
    """Of one pass forward, by layer with parameters of its own."""
    with torch.no_grad(), counter() as seen:
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
