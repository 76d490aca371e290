"""The server: state, what it sends, how it updates, and the hand-over between stages."""

from collections.abc import Mapping
from typing import Any, NamedTuple

import torch

from kedge.core.algorithm import Algorithm, fitted
from kedge.core.correction import Cohort, Correction, Weight, within
from kedge.core.model import Model
from kedge.core.tree import Leaves, Tree, flatten, only, tree_foreach


class Rejection(NamedTuple):
    """An upload that was not admitted to the mean."""

    client: int
    reason: str


class Reply(NamedTuple):
    """Exactly what comes back from a round, averaged."""

    mean: dict[str, Any]  # delta, buffers, slots
    size: int  # admitted uploads
    trained: frozenset[str]  # leaves that trained on some client
    rejected: tuple[Rejection, ...]
    metrics: dict[str, float]
    average: Leaves | None = None  # the shared leaves with the mean delta, where they are added already


class Server(NamedTuple):
    """The server's state between rounds."""

    shared: Leaves  # the distributed model's shared leaves
    buffers: Leaves  # batch norm's statistics, averaged
    slots: dict[str, Tree]  # each correction's server state
    average: Leaves  # the plain weighted mean of the last participants
    own: Leaves  # leaves that are not shared, as a client begins with them


def initial_server(algorithm: Algorithm, model: Model, params: Leaves, buffers: Leaves) -> Server:
    """The server before its first round."""
    model = fitted(algorithm, model)
    names = algorithm.shared(model)
    shared, own = only(params, names), {k: v for k, v in params.items() if k not in names}
    slots = {c.name: c.init_server(within(c, model, shared, own)) for c in algorithm.corrections}
    return Server(shared, buffers, slots, shared, own)


def broadcast(algorithm: Algorithm, server: Server) -> dict[str, Tree]:
    """What each correction sends to the clients."""
    return {c.name: c.broadcast(server.slots[c.name]) for c in algorithm.corrections}


def server_update(algorithm: Algorithm, server: Server, reply: Reply, population: int, round: int) -> Server:
    """θ ← θ + update, where the mean delta passes every correction's server rule from left to right.

    Leaves that trained on nobody this round keep their values, in the model and in every server state.
    """
    mean = reply.mean
    update = mean["delta"]
    average = reply.average or tree_foreach(torch._foreach_add, server.shared, update)
    slots = dict(server.slots)
    cohort = Cohort(round, reply.size, population, server.shared)
    for c in algorithm.corrections:
        update, slots[c.name] = c.server(update, mean["slots"][c.name], slots[c.name], cohort)
    moved = average if update is mean["delta"] else tree_foreach(torch._foreach_add, server.shared, update)
    frozen = frozenset(server.shared) - reply.trained
    if frozen:
        moved = {k: server.shared[k] if k in frozen else v for k, v in moved.items()}
        resting = {c.name for c in algorithm.corrections if c.rests}
        slots |= keep(server.slots, {k: v for k, v in slots.items() if k in resting}, frozen)
    return Server(moved, mean["buffers"], slots, average, server.own)


def keep(old: Tree, new: Tree, names: frozenset[str]) -> dict[str, Any]:
    """The new tree with the tensors of these names, wherever they stand, as they were in the old one."""
    return {
        k: keep(old[k], v, names) if isinstance(v, Mapping) else old[k] if k in names else v
        for k, v in new.items()
    }


def next_stage_server(
    before: Algorithm, after: Algorithm, server: Server, model: Model
) -> tuple[Server, frozenset[str]]:
    """The server at the start of the next stage, and the slots whose memory goes on.

    A correction of the same name and kind in both stages keeps its state, if it is about the same leaves; the
    others begin anew. A leaf that is shared from now on starts as every client's did, one that no longer is
    starts from the server's; heads that come in start as the method says.
    """
    leaves = {**server.own, **server.shared}
    if set(after.heads) - set(before.heads):
        leaves |= after.headed(model, leaves)
    fresh = initial_server(after, model, leaves, server.buffers)
    old = {c.name: (type(c), leaves_of(c, fitted(before, model), server)) for c in before.corrections}
    kept = frozenset(
        c.name
        for c in after.corrections
        if old.get(c.name) == (type(c), leaves_of(c, fitted(after, model), fresh))
    )
    slots = {k: server.slots[k] if k in kept else v for k, v in fresh.slots.items()}
    return fresh._replace(slots=slots), kept


def leaves_of(correction: Correction, model: Model, server: Server) -> tuple[set[str], set[str]]:
    """The names of what a correction keeps, on a client and on the server."""
    shared = within(correction, model, server.shared, server.own)
    return set(flatten(correction.init_client(shared))), set(flatten(correction.init_server(shared)))


def upload_weights(algorithm: Algorithm) -> dict[str, Weight]:
    """The weight of every part of an upload: the deltas' and, by slot, each correction's."""
    # Looked up on the class: a function in an instance's attribute would become a method.
    return {
        "": algorithm.weight,
        **{c.name: type(c).weight or algorithm.weight for c in algorithm.corrections},
    }
