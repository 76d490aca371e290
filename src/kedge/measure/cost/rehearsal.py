"""A client's round rehearsed on the CPU, to see what it computes and what it uploads.

The kernel itself runs on a few copies of one sample while its multiply-adds are counted (`macs.py`): every
pass that a method adds is in the count, and nothing that a frozen layer saves. A step on n samples takes
a + b·n + c·n² of them (b the network's, a products of weights alone, c products of samples with each other),
which n = 1, 2, 3 tell.
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
from kedge.core.correction import within
from kedge.core.frozen import place_frozen
from kedge.core.model import Batch, Model
from kedge.core.server import broadcast, initial_server
from kedge.core.tree import Leaves, tree_to
from kedge.data.federation import Federation
from kedge.measure.cost.macs import counted

SIZES = (1, 2, 3)


def through(values: Sequence[int], at: int) -> int:
    """The polynomial of second degree that has these values at 1, 2 and 3."""
    first, second, third = values
    rise, bend = second - first, third - 2 * second + first
    return first + rise * (at - 1) + bend * ((at - 1) * (at - 2) // 2)


class Rehearsal:
    """One method's client before its first round; every kind of step is counted once."""

    def __init__(
        self,
        algorithm: Algorithm,
        model: Model,
        local: LocalTraining,
        data: Federation,
        params: Leaves,
        buffers: Leaves,
    ) -> None:
        """`model` is as the algorithm sees it, `params` and `buffers` as a run begins with them."""
        self.algorithm, self.local, self.classes = algorithm, local, data.classes
        self.model = model = place_frozen(model, data.dtype)
        params, buffers = tree_to(params, data.dtype), tree_to(buffers, data.dtype)
        server = initial_server(algorithm, model, params, buffers)
        memory = {
            c.name: c.init_client(within(c, model, server.shared, server.own)) for c in algorithm.corrections
        }
        self.carry = initial_carry(local, params, buffers, memory)
        self.fixed: Fixed = {
            "anchor": server.shared,
            "buffers": buffers,
            "broadcast": broadcast(algorithm, server),
            "facts": {k: v[0].cpu() for k, v in data.facts().items()},
            "lr": torch.tensor(local.optimizer.rate(0), dtype=data.dtype),
        }
        self.x, self.y = data.prepare(data.pool.x[:1]).cpu(), data.pool.y[:1].cpu()
        self.known: dict[tuple[str, ...] | None, list[int]] = {}
        asked = algorithm.needs_class_means
        self.means = class_means(self.rehearsed_survey(self.batch(1))) if asked else None
        self.end, self.upload = counted(self.rehearsed_end)

    def step(self, trainable: tuple[str, ...], samples: int) -> int:
        """Of one optimizer step on so many samples, in which these leaves train."""
        if trainable not in self.known:
            self.known[trainable] = [
                counted(partial(self.rehearsed_step, trainable, self.batch(n)))[0] for n in SIZES
            ]
        return through(self.known[trainable], samples)

    def survey(self, samples: int) -> int:
        """Of the look at so many samples together that class means take."""
        if None not in self.known:
            self.known[None] = [counted(partial(self.rehearsed_survey, self.batch(n)))[0] for n in SIZES]
        return through(self.known[None], samples)

    def batch(self, samples: int) -> Batch:
        """So many copies of one sample."""
        x, y = (v.expand(samples, *v.shape[1:]).contiguous() for v in (self.x, self.y))
        return Batch(x, y, torch.ones(samples, dtype=x.dtype), torch.zeros(2, dtype=torch.int64))

    def rehearsed_step(self, trainable: tuple[str, ...], batch: Batch) -> Carry:
        """The kernel's step as a client alone takes it."""
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
    def rehearsed_survey(self, batch: Batch) -> Leaves:
        """The pass for class means."""
        return class_sums(self.model, self.classes, self.carry["params"], self.carry["buffers"], batch)

    def rehearsed_end(self) -> dict[str, Any]:
        """The upload at the end of a round."""
        one = torch.ones_like(self.fixed["lr"])
        times = {k: one for k in self.carry["params"]}
        return finish(self.algorithm, self.carry, self.fixed, one, times, self.means)[1]
