"""Sums: weighted sums of clients' uploads, which add up.

Chunks of a stack, clients of the plain loop, runs of a pack, and later workers and networks, all give `Sums`.
`left + right` are the sums over the clients of both; `Sums.reply` divides by the total weights, once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor

from kedge.core.correction import Weight
from kedge.core.server import Rejection, Reply
from kedge.core.tree import Leaves, Tree, tree_foreach, tree_map
from kedge.torch_private import foreach_div

Totals = dict[str, tuple[dict[str, Any], Tensor]]  # by slot ("": deltas and buffers): weighted sum, weight


class Uploads(NamedTuple):
    """Stacked uploads of clients, one row each."""

    tree: dict[str, Any]  # delta, slots, buffers, loss
    facts: Leaves
    admitted: Tensor  # [rows]: whether everything that a client computed is finite
    flags: list[bool]  # `admitted`, on the host
    losses: list[float]  # the mean training losses, on the host

    def rows(self, some: slice) -> Uploads:
        """The uploads of some rows."""
        tree, facts = (tree_map(lambda v: v[some], part) for part in (self.tree, self.facts))
        return Uploads(tree, facts, self.admitted[some], self.flags[some], self.losses[some])


@dataclass(frozen=True, eq=False)
class Sums:
    """Weighted sums over some clients; `Sums()` is the sum over none."""

    totals: Totals = field(default_factory=dict)
    size: int = 0  # number of admitted uploads
    loss: float = 0.0  # sum of the mean training losses
    trained: frozenset[str] = frozenset()  # leaves that trained on some client
    rejected: tuple[Rejection, ...] = ()

    def __add__(self, other: Sums) -> Sums:
        """The sums over the clients of both."""
        totals = {**self.totals, **other.totals}
        for slot in self.totals.keys() & other.totals.keys():
            (left, left_weight), (right, right_weight) = self.totals[slot], other.totals[slot]
            totals[slot] = tree_map(torch.add, left, right), left_weight + right_weight
        return Sums(
            totals,
            self.size + other.size,
            self.loss + other.loss,
            self.trained | other.trained,
            self.rejected + other.rejected,
        )

    def reply(self, means: dict[str, Any] | None = None, average: Leaves | None = None) -> Reply:
        """The weighted means; pass `means` by slot, and the shared leaves plus delta, if computed already."""
        if not self.size:
            return Reply({}, 0, self.trained, self.rejected, {})
        means = dict(means or weighted_means(self.totals))
        whole = means.pop("")
        metrics = {"train.loss": self.loss / self.size}
        return Reply({**whole, "slots": means}, self.size, self.trained, self.rejected, metrics, average)


def sum_uploads(
    uploads: Uploads,
    first: int,
    clients: Sequence[int],
    weights: dict[str, Weight],
    trained: frozenset[str],
    totals: Totals | None = None,
) -> Sums:
    """Sums over the rows of `clients`, from row `first` on; a row that is not finite is named as rejected.

    `totals` are the weighted sums of these rows, if computed already; they are used if every row is finite.
    """
    some = slice(first, first + len(clients))
    flags, losses = uploads.flags[some], uploads.losses[some]
    if totals is None or not all(flags):
        own = uploads.rows(some)
        tree = own.tree if all(flags) else without_rejected(own)
        totals = weighted_totals(weights, tree, own.facts, own.admitted)
    return Sums(
        totals,
        sum(flags),
        sum(loss for loss, finite in zip(losses, flags, strict=True) if finite),
        trained,
        tuple(
            Rejection(client, "not finite")
            for client, finite in zip(clients, flags, strict=True)
            if not finite
        ),
    )


def without_rejected(uploads: Uploads) -> dict[str, Any]:
    """The uploads with zeros in the rows that are not finite: a product with weight 0 would keep a NaN."""
    admitted = uploads.admitted

    def zeroed(v: Tensor) -> Tensor:
        return torch.where(admitted.view(-1, *([1] * (v.dim() - 1))), v, torch.zeros_like(v))

    return tree_map(zeroed, uploads.tree)


def read_back(tree: dict[str, Any], admitted: Tensor) -> tuple[list[bool], list[float]]:
    """`admitted` and the losses of all rows as Python values; the host waits for the device here."""
    loss = tree["loss"]
    flags, losses = torch.stack((admitted.to(loss.dtype), loss)).tolist()
    return [bool(flag) for flag in flags], losses


def weighted_means(totals: Totals) -> dict[str, Any]:
    """By slot: the weighted sum divided by the total weight."""
    return {slot: divided(total, weight) for slot, (total, weight) in totals.items()}


def divided(total: Tree, weight: Tensor) -> dict[str, Any]:
    """Every tensor of a tree divided by `weight`."""

    def divide(sums: list[Tensor]) -> Sequence[Tensor]:
        if len({v.dtype for v in sums}) == 1:
            return foreach_div(sums, weight.to(sums[0].dtype))
        return [v / weight.to(v.dtype) for v in sums]

    return tree_foreach(divide, total)


def weighted_totals(
    weights: dict[str, Weight], uploads: dict[str, Any], facts: Leaves, admitted: Tensor
) -> Totals:
    """By slot: the weighted sum over the rows with a flag in `admitted`, and the sum of their weights.

    Flags [groups, rows] instead of [rows] give the sums of each group of rows.
    """
    totals: Totals = {}
    for slot, weight in weights.items():
        part = uploads["slots"][slot] if slot else {"delta": uploads["delta"], "buffers": uploads["buffers"]}
        mass = weight(facts) * admitted
        totals[slot] = tree_map(partial(weighted_sum, mass), part), mass.sum(-1)
    return totals


def weighted_sum(mass: Tensor, rows: Tensor) -> Tensor:
    """The weighted sum of rows; kernels in channels-last layout are not copied first."""
    last = rows.dim() > 3 and not rows.is_contiguous()
    total: Tensor = torch.tensordot(mass.to(rows.dtype), rows.movedim(-3, -1) if last else rows, dims=1)
    return total.movedim(-1, -3).contiguous() if last else total
