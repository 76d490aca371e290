"""Sums: weighted sums of clients' uploads; `left + right` are the sums over the clients of both.

Each chunk of a stack, client of the plain loop and run of a pack returns `Sums`, and later each worker of a
cluster. `Sums.reply` divides by the total weights once.
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

    def rows(self, rows: slice) -> Uploads:
        """The uploads of these rows."""
        tree, facts = (tree_map(lambda v: v[rows], part) for part in (self.tree, self.facts))
        return Uploads(tree, facts, self.admitted[rows], self.flags[rows], self.losses[rows])


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
        """The weighted means of the uploads.

        A pack has computed `means`, the means by slot, and `average`, the shared leaves plus the mean delta.
        """
        if not self.size:
            return Reply({}, 0, self.trained, self.rejected, {})
        slot_means = dict(means or weighted_means(self.totals))
        model_means = slot_means.pop("")  # delta and buffers
        mean = {**model_means, "slots": slot_means}
        metrics = {"train.loss": self.loss / self.size}
        return Reply(mean, self.size, self.trained, self.rejected, metrics, average)


def sum_uploads(
    uploads: Uploads,
    first: int,
    clients: Sequence[int],
    weights: dict[str, Weight],
    trained: frozenset[str],
    totals: Totals | None = None,
) -> Sums:
    """Sums over `clients`, whose uploads are the rows from `first` on; rows that are not finite are rejected.

    `totals` are the weighted sums of these rows, if computed already; they are used if every row is finite.
    """
    rows = slice(first, first + len(clients))
    flags, losses = uploads.flags[rows], uploads.losses[rows]
    if totals is None or not all(flags):
        selected = uploads.rows(rows)
        tree = selected.tree if all(flags) else without_rejected(selected)
        totals = weighted_totals(weights, tree, selected.facts, selected.admitted)
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
    """Copy `admitted` and the losses of all rows to the host; the host waits for the device here."""
    loss = tree["loss"]
    flags, losses = torch.stack((admitted.to(loss.dtype), loss)).tolist()
    return [bool(flag) for flag in flags], losses


def weighted_means(totals: Totals) -> dict[str, Any]:
    """The weighted mean of each slot: its weighted sum, divided by its total weight."""
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
    """The weighted sum of each slot over the rows with a true flag in `admitted`, and the sum of the weights.

    Flags [groups, rows] instead of [rows] give the sums of each group of rows.
    """
    totals: Totals = {}
    for slot, weight in weights.items():
        part = uploads["slots"][slot] if slot else {"delta": uploads["delta"], "buffers": uploads["buffers"]}
        mass = weight(facts) * admitted
        totals[slot] = tree_map(partial(weighted_sum, mass), part), mass.sum(-1)
    return totals


def weighted_sum(mass: Tensor, rows: Tensor) -> Tensor:
    """The sum of `rows` with the weights `mass`; it makes no copy of kernels in channels-last layout."""
    channels_last = rows.dim() > 3 and not rows.is_contiguous()
    in_memory_order = rows.movedim(-3, -1) if channels_last else rows
    total: Tensor = torch.tensordot(mass.to(rows.dtype), in_memory_order, dims=1)
    return total.movedim(-1, -3).contiguous() if channels_last else total
