"""Checks of an upload from the network before it enters a sum: names, shapes, numbers, weights, norm."""

from collections.abc import Mapping
from dataclasses import dataclass
from statistics import median
from typing import Any

import torch
from torch import Tensor

from kedge.core.algorithm import Algorithm
from kedge.core.server import Rejection, upload_weights
from kedge.core.tree import Leaves, Tree, sqnorm
from kedge.engines.engine import Order
from kedge.engines.flower.messages import Content, MessageError
from kedge.engines.flower.selection import completed, mismatch, without_leaves
from kedge.engines.sums import Sums, Totals

WEIGHT_ERROR = 1e-3  # relative; weights are computed in the precision of the run
MOST_CHARACTERS = 200  # of a reason that a client sends


@dataclass(frozen=True, eq=False)
class Expected:
    """The upload that a client should send in a round."""

    order: Order
    algorithm: Algorithm
    template: Tree  # delta, slots, buffers, with the right names, shapes and dtypes
    trained: frozenset[str]  # leaves that train on some client of the round
    frozen: frozenset[str]  # all other leaves: they are not sent
    sends_statistics: bool
    facts: Leaves  # the client's number of samples, and its relative size


def checked_sums(reply: Content, expected: Expected) -> Sums:
    """The sums of one client's valid upload; raise MessageError with the reason if it is not valid."""
    tree = checked_tree(reply, expected)
    weights = checked_weights(reply, expected)
    if not expected.sends_statistics:
        tree["buffers"] = {k: v * weights[""].to(v.dtype) for k, v in expected.order.buffers.items()}
    return Sums(totals_of(tree, weights), 1, reply.number("loss"), expected.trained & reply.names("trained"))


def checked_tree(reply: Content, expected: Expected) -> dict[str, Any]:
    """The tensors of an upload, completed by zeros; raise MessageError with the reason if it is not valid."""
    if reply.kind == "failed":
        raise MessageError(reply.text("reason")[:MOST_CHARACTERS])
    if reply.kind != "upload" or reply.integer("round") != expected.order.round:
        raise MessageError(f"its message is {reply.kind!r}, not the upload of this round")
    reply.flag("stored")
    rejected = reply.text("rejected")
    if rejected:
        raise MessageError(rejected[:MOST_CHARACTERS])
    parts = {k: expected.template[k] for k in ("delta", "slots", "buffers")}
    sent = parts if expected.sends_statistics else {**parts, "buffers": {}}
    difference = mismatch(reply.tensors, without_leaves(sent, expected.frozen))
    if difference or not all(bool(v.isfinite().all()) for v in reply.tensors.values()):
        raise MessageError(difference or "not finite")
    return dict(completed(reply.tensors, parts))


def checked_weights(reply: Content, expected: Expected) -> dict[str, Tensor]:
    """The weights of an upload; raise MessageError if one is not that of the client's number of samples."""
    weights = {}
    for slot, weigh in upload_weights(expected.algorithm).items():
        weight = reply.number(f"weight.{slot}")
        try:
            right = float(weigh(expected.facts))
        except KeyError:  # a method of its own may weigh by class counts, which the server does not know
            right = max(weight, 0.0)
        if not right or abs(weight / right - 1) > WEIGHT_ERROR:
            raise MessageError(f"its weight is {weight}, not {right}")
        weights[slot] = torch.tensor(weight, dtype=torch.float64)
    return weights


def totals_of(tree: Tree, weights: Mapping[str, Tensor]) -> Totals:
    """The weighted sums of one upload by slot, and their weights."""
    like = next(iter(tree["delta"].values()))
    parts: dict[str, Tree] = {
        slot: tree["slots"][slot] if slot else {"delta": tree["delta"], "buffers": tree["buffers"]}
        for slot in weights
    }
    return {slot: (dict(part), weights[slot].to(like.dtype)) for slot, part in parts.items()}


def without_outliers(uploads: Mapping[int, Sums], limit: float) -> dict[int, Sums]:
    """The uploads, without updates with a norm above `limit` times the median of the round."""
    norms = {client: update_norm(upload) for client, upload in uploads.items() if upload.size}
    middle = median(norms.values()) if norms else 0.0
    checked = dict(uploads)
    for client, norm in norms.items():
        if middle and norm > limit * middle:
            reason = f"the norm of its update is {norm / middle:.0f} times the median"
            checked[client] = Sums(rejected=(Rejection(client, reason),))
    return checked


def update_norm(upload: Sums) -> float:
    """The norm of a client's update."""
    total, weight = upload.totals[""]
    return float(sqnorm(total["delta"]).sqrt() / weight)
