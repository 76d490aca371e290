"""Engines against each other, and frozen leaves against themselves."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch

from kedge.audit.bed import Witness
from kedge.audit.finding import Finding, agreed, holds
from kedge.audit.network import RAGGED, federation, normalized, perceptron, trained
from kedge.core.algorithm import Algorithm, Local
from kedge.core.optimizers import SGD
from kedge.core.schedules import Clock, Mask
from kedge.core.tree import flatten
from kedge.data.batches import plan
from kedge.engines.sequential import Sequential
from kedge.engines.stacked import Stacked

TOLERANCE = 1e-12


def engines_agree(algorithm: Algorithm) -> Finding:
    """Sequential and stacked after three ragged rounds with batch norm: server, memories, statistics."""
    model, data = normalized(), federation(RAGGED, (1, 5, 5))
    local = Local(2, 5, SGD(0.1, weight_decay=1e-3), clip=1.0)
    one, many = Sequential(model, data), Stacked(model, data, chunk=2)
    plain = trained(algorithm, local, 3, data, model, one).server
    stacked = trained(algorithm, local, 3, data, model, many).server
    left = {"server": plain._asdict(), "clients": one.save()}
    right = {"server": stacked._asdict(), "clients": many.save()}
    return agreed(left, right, plain.shared, TOLERANCE)


def second_unit(clock: Clock, units: int) -> Mask:
    """Only the second unit ever trains."""
    return tuple(unit == 1 for unit in range(units))


def never_opened(algorithm: Algorithm, momentum: float) -> Finding:
    """Units that never train keep every bit they began with: on server and clients, in all memories."""
    model, data = perceptron(), federation(RAGGED)
    local = Local(2, 5, SGD(0.1, momentum, weight_decay=1e-2), clip=1.0)
    watched = replace(algorithm, schedule=second_unit, corrections=(*algorithm.corrections, Witness(1)))
    start = model.init(0)[0]
    closed = [k for k in start if k not in model.units[1]]
    moved: list[str] = []
    for engine in (Sequential(model, data), Stacked(model, data)):
        server = trained(watched, local, 3, data, model, engine).server
        slots = [row["slots"] for row in engine.save().values()]
        models = [server.shared, *({k: v[0] for k, v in own["witness"].items()} for own in slots)]
        moved += [k for k in closed if not all(torch.equal(one[k], start[k]) for one in models)]
        moved += [k for k in model.units[1] if any(torch.equal(one[k], start[k]) for one in models)]
        first = {c.name: c.init_server(start) for c in algorithm.corrections}
        begun = {c.name: c.init_client(start) for c in algorithm.corrections}
        moved += [k for k in closed if not as_begun(first, server.slots, k)]
        moved += [k for k in closed if not all(as_begun(begun, own, k) for own in slots)]
    return holds(
        not moved, f"{len(closed)} leaves frozen on both engines; wrong: {sorted(set(moved)) or 'none'}"
    )


def as_begun(before: Mapping[str, Any], after: Mapping[str, Any], leaf: str) -> bool:
    """Whether this leaf is as it was, wherever it stands in a tree of memories."""
    now = flatten(after)
    return all(torch.equal(v, now[k]) for k, v in flatten(before).items() if k.endswith("/" + leaf))


def opened_late(algorithm: Algorithm) -> Finding:
    """Until a unit opens, its leaves are the server's bit for bit, step by step; from then on they move."""
    model, data = perceptron(), federation(RAGGED)
    local = Local(2, 4, SGD(0.1, weight_decay=1e-2))
    watched = replace(algorithm, corrections=(*algorithm.corrections, Witness(2 * 5)))
    wrong: list[str] = []
    for engine in (Sequential(model, data), Stacked(model, data)):
        trained(watched, local, 1, data, model, engine)
        sent, memories = model.init(0)[0], engine.save()
        for client, own in enumerate(data.clients):
            masks = plan([own], [client], local, algorithm.schedule, len(model.units), 0, 0, 0).masks
            path = memories[str(client)]["slots"]["witness"]
            for unit, leaves in enumerate(model.units):
                closed = sum(not mask[unit] for mask in masks)
                for k in leaves:
                    steps = path[k][-len(masks) :]
                    kept = all(torch.equal(v, sent[k]) for v in steps[:closed])
                    moves = all(not torch.equal(v, sent[k]) for v in steps[closed:])
                    wrong += [] if kept and moves else [f"client {client}, {k}"]
    return holds(
        not wrong, f"every step of {len(RAGGED)} ragged clients on both engines; wrong: {wrong or 'none'}"
    )
