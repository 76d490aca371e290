"""A dry run of one client's round on the CPU: counts its multiply-adds and records the tensors it uploads.

The kernel runs on a few copies of one sample while `macs.py` counts. The count therefore includes every pass
that a method adds and excludes the work that frozen layers save. A step on n samples takes a + b·n + c·n²
multiply-adds: b for the network, a for products of weights alone, c for products between samples. Runs with
n = 1, 2, 3 determine the three coefficients.
"""

from collections.abc import Sequence
from functools import partial
from typing import Any

import torch

from kedge.core.algorithm import Algorithm, LocalTraining
from kedge.core.client import (
    Carry,
    Fixed,
    class_means,
    class_sums,
    finish,
    gradient_by_autograd,
    initial_carry,
    local_step,
)
from kedge.core.correction import reached_leaves
from kedge.core.frozen import place_frozen
from kedge.core.model import Batch, Model
from kedge.core.server import broadcast, initial_server
from kedge.core.tree import Leaves, tree_to
from kedge.data.federation import Federation
from kedge.measure.cost.macs import count_macs

SIZES = (1, 2, 3)


def quadratic(values: Sequence[int], x: int) -> int:
    """The value at `x` of the quadratic polynomial with `values` at 1, 2 and 3 (Newton's formula)."""
    first, second, third = values
    difference, second_difference = second - first, third - 2 * second + first
    return first + difference * (x - 1) + second_difference * ((x - 1) * (x - 2) // 2)


class DryRun:
    """Counts multiply-adds of one method's client, and caches the counts by the set of trainable leaves."""

    def __init__(
        self,
        algorithm: Algorithm,
        model: Model,
        local: LocalTraining,
        data: Federation,
        params: Leaves,
        buffers: Leaves,
    ) -> None:
        """`model` is already adapted to the algorithm; `params` and `buffers` have their initial values."""
        self.algorithm, self.local, self.classes = algorithm, local, data.classes
        self.model = model = place_frozen(model, data.dtype)
        params, buffers = tree_to(params, data.dtype), tree_to(buffers, data.dtype)
        server = initial_server(algorithm, model, params, buffers)
        memory = {
            c.name: c.init_client(reached_leaves(c, model, server.shared, server.own))
            for c in algorithm.corrections
        }
        self.carry = initial_carry(local, params, buffers, memory)
        self.fixed: Fixed = {
            "anchor": server.shared,
            "buffers": buffers,
            "broadcast": broadcast(algorithm, server),
            "facts": {k: v[0].cpu() for k, v in data.facts().items()},
            "lr": torch.tensor(local.optimizer.rate(0), dtype=data.dtype),
            "round": torch.tensor(0),
        }
        self.x, self.y = data.prepare(data.pool.x[:1]).cpu(), data.pool.y[:1].cpu()
        self.counts: dict[tuple[str, ...] | None, list[int]] = {}  # None: the pass for class means
        needed = algorithm.needs_class_means
        self.means = class_means(self.run_class_means(self.batch(1))) if needed else None
        self.end, self.upload = count_macs(self.run_end)

    def step_macs(self, trainable: tuple[str, ...], samples: int) -> int:
        """Multiply-adds of one optimizer step on `samples` samples in which the leaves `trainable` train."""
        if trainable not in self.counts:
            self.counts[trainable] = [
                count_macs(partial(self.run_step, trainable, self.batch(n)))[0] for n in SIZES
            ]
        return quadratic(self.counts[trainable], samples)

    def class_means_macs(self, samples: int) -> int:
        """Multiply-adds of the pass for class means over one batch of `samples` samples."""
        if None not in self.counts:
            self.counts[None] = [count_macs(partial(self.run_class_means, self.batch(n)))[0] for n in SIZES]
        return quadratic(self.counts[None], samples)

    def batch(self, samples: int) -> Batch:
        """A batch of `samples` copies of one sample."""
        x, y = (v.expand(samples, *v.shape[1:]).contiguous() for v in (self.x, self.y))
        return Batch(x, y, torch.ones(samples, dtype=x.dtype), torch.zeros(2, dtype=torch.int64))

    def run_step(self, trainable: tuple[str, ...], batch: Batch) -> Carry:
        """Run the kernel's step on `batch`, for a single client."""
        return local_step(
            self.algorithm,
            self.model,
            self.local,
            trainable,
            self.carry,
            batch,
            self.fixed,
            gradient_by_autograd,
        )

    @torch.no_grad()
    def run_class_means(self, batch: Batch) -> Leaves:
        """Run the forward pass that sums features by class."""
        return class_sums(self.model, self.classes, self.carry["params"], self.carry["buffers"], batch)

    def run_end(self) -> dict[str, Any]:
        """Run the kernel's `finish`, and return the client's upload."""
        steps = torch.ones_like(self.fixed["lr"])
        lr_time = {k: steps for k in self.carry["params"]}
        return finish(self.algorithm, self.carry, self.fixed, steps, lr_time, self.means)[1]
