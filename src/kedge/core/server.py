"""The server: its state, its broadcast, its update, and the change from one stage to the next."""

from collections.abc import Mapping
from typing import Any, NamedTuple

from kedge.core.algorithm import Algorithm, model_for
from kedge.core.correction import Cohort, Correction, Weight, reached_leaves
from kedge.core.model import Model
from kedge.core.tree import Leaves, Tree, flatten, only, tree_foreach
from kedge.torch_private import foreach_add

NOT_JOINED = "has not joined yet"  # the reason of a client of a federation that has never connected


class Rejection(NamedTuple):
    """An upload that is left out of the mean."""

    client: int
    reason: str


class Reply(NamedTuple):
    """The result of a round: the means of the admitted uploads."""

    mean: dict[str, Any]  # delta, buffers, slots
    size: float  # admitted uploads; in a private run the expected number of participants
    trained: frozenset[str]  # leaves that trained on at least one client
    rejected: tuple[Rejection, ...]
    metrics: dict[str, float]
    average: Leaves | None = None  # shared leaves + mean delta, if the engine has already added them


class Server(NamedTuple):
    """The server's state between rounds."""

    shared: Leaves  # the shared leaves of the distributed model
    buffers: Leaves  # averaged batch norm statistics
    slots: dict[str, Tree]  # the server state of each correction
    average: Leaves  # weighted mean of the last participants' models, without any server rule
    own: Leaves  # initial values of the leaves that are not shared


def initial_server(algorithm: Algorithm, model: Model, params: Leaves, buffers: Leaves) -> Server:
    """The server's state before the first round."""
    model = model_for(algorithm, model)
    names = algorithm.shared(model)
    shared, unshared = only(params, names), {k: v for k, v in params.items() if k not in names}
    slots = {c.name: c.init_server(reached_leaves(c, model, shared, unshared)) for c in algorithm.corrections}
    return Server(shared, buffers, slots, average=shared, own=unshared)


def broadcast(algorithm: Algorithm, server: Server) -> dict[str, Tree]:
    """The tensors that each correction sends to the clients, by slot."""
    return {c.name: c.broadcast(server.slots[c.name]) for c in algorithm.corrections}


def server_update(algorithm: Algorithm, server: Server, reply: Reply, population: int, round: int) -> Server:
    """The server's state after a round: θ ← θ + update.

    The update is the mean delta after the `server` hook of every correction, from left to right. A leaf that
    trained on no client keeps its value in the model, and in the server state of corrections with `rests`.
    """
    mean = reply.mean
    update = mean["delta"]
    average = reply.average or tree_foreach(foreach_add, server.shared, update)
    slots = dict(server.slots)
    cohort = Cohort(round, reply.size, population, server.shared)
    for c in algorithm.corrections:
        update, slots[c.name] = c.server(update, mean["slots"][c.name], slots[c.name], cohort)
    shared = average if update is mean["delta"] else tree_foreach(foreach_add, server.shared, update)
    frozen = frozenset(server.shared) - reply.trained
    if frozen:
        shared = {k: server.shared[k] if k in frozen else v for k, v in shared.items()}
        resting = {c.name: slots[c.name] for c in algorithm.corrections if c.rests}
        slots |= with_old_leaves(server.slots, resting, frozen)
    return Server(shared, mean["buffers"], slots, average, server.own)


def with_old_leaves(old: Tree, new: Tree, names: frozenset[str]) -> dict[str, Any]:
    """The tree `new`, in which the tensors named in `names`, at any depth, are those of `old`."""
    return {
        k: with_old_leaves(old[k], v, names) if isinstance(v, Mapping) else old[k] if k in names else v
        for k, v in new.items()
    }


def next_stage_server(
    before: Algorithm, after: Algorithm, server: Server, model: Model
) -> tuple[Server, frozenset[str]]:
    """The server's state at the start of the next stage, and the slots that keep their client memories.

    A correction keeps its state if `before` has a correction with the same slot and class, for the same
    leaves; the others start with new state. A leaf that becomes shared starts from its initial value, a leaf
    that is no longer shared from the server's value. `Algorithm.headed` computes the values of added heads.
    """
    leaves = {**server.own, **server.shared}
    if set(after.heads) - set(before.heads):
        leaves |= after.headed(model, leaves)
    new_server = initial_server(after, model, leaves, server.buffers)
    old_states = {
        c.name: (type(c), state_names(c, model_for(before, model), server)) for c in before.corrections
    }
    kept = frozenset(
        c.name
        for c in after.corrections
        if old_states.get(c.name) == (type(c), state_names(c, model_for(after, model), new_server))
    )
    slots = {k: server.slots[k] if k in kept else v for k, v in new_server.slots.items()}
    return new_server._replace(slots=slots), kept


def state_names(correction: Correction, model: Model, server: Server) -> tuple[set[str], set[str]]:
    """The names of the tensors in a correction's state: on a client, and on the server."""
    leaves = reached_leaves(correction, model, server.shared, server.own)
    return set(flatten(correction.init_client(leaves))), set(flatten(correction.init_server(leaves)))


def upload_weights(algorithm: Algorithm) -> dict[str, Weight]:
    """The function of client weights for each part of an upload: "" for delta and buffers, then by slot."""
    # Read from the class: as an attribute of an instance the function would become a method.
    return {
        "": algorithm.weight,
        **{c.name: type(c).weight or algorithm.weight for c in algorithm.corrections},
    }
