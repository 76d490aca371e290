"""Engines against each other, and frozen leaves against themselves."""

from collections.abc import Mapping
from dataclasses import replace
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from kedge.audit.bed import Witness
from kedge.audit.finding import Finding, agreed, holds
from kedge.audit.network import RAGGED, federation, normalized, perceptron, trained
from kedge.core.algorithm import Algorithm, LocalTraining, Stage
from kedge.core.optimizers import SGD
from kedge.core.schedules import Clock, Mask
from kedge.core.server import initial_server
from kedge.core.tree import Leaves, flatten
from kedge.data.batches import plan
from kedge.engines.sequential import Sequential
from kedge.engines.stacked import Stacked

TOLERANCE = 1e-12


def engines_agree(algorithm: Algorithm) -> Finding:
    """Sequential and stacked after three ragged rounds with batch norm: server, memories, statistics."""
    model, data = normalized(algorithm), federation(RAGGED, (1, 5, 5))
    local = LocalTraining(2, 5, SGD(0.1, weight_decay=1e-3), clip=1.0)
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
    model, data = perceptron(algorithm), federation(RAGGED)
    local = LocalTraining(2, 5, SGD(0.1, momentum, weight_decay=1e-2), clip=1.0)
    watched = replace(algorithm, schedule=second_unit, corrections=(*algorithm.corrections, Witness(1)))
    start = model.init(0)[0]
    first = initial_server(watched, model, start, {})
    closed = [k for k in start if k not in model.units[1] and k not in model.extra]
    moved: list[str] = []
    for engine in (Sequential(model, data), Stacked(model, data)):
        engine.begin(Stage(watched, 1, local), start)
        begun = engine.memories.of(0, first.shared, {})["slots"]
        server = trained(watched, local, 3, data, model, engine).server
        rows = engine.save().values()
        models = [server.shared, *({**last(row["slots"]["witness"]), **row["local"]} for row in rows)]
        moved += [k for k in closed if not all(torch.equal(one[k], start[k]) for one in models if k in one)]
        moved += [
            k for k in model.units[1] if any(torch.equal(one[k], start[k]) for one in models if k in one)
        ]
        moved += [k for k in closed if not untouched(first.slots, server.slots, k, start[k])]
        moved += [k for k in closed if not all(untouched(begun, row["slots"], k, start[k]) for row in rows)]
    return holds(
        not moved, f"{len(closed)} leaves frozen on both engines; wrong: {sorted(set(moved)) or 'none'}"
    )


def last(path: Leaves) -> Leaves:
    """A witness's newest model."""
    return {k: v[-1] for k, v in path.items()}


def untouched(before: Mapping[str, Any], after: Mapping[str, Any], leaf: str, start: Tensor) -> bool:
    """Whether a tree of memories holds this leaf as it was, or a copy of the model's, wherever it stands."""
    now = flatten(after)
    return all(
        torch.equal(now[k], v) or torch.equal(now[k], start)
        for k, v in flatten(before).items()
        if k.endswith("/" + leaf)
    )


def opened_late(algorithm: Algorithm) -> Finding:
    """Step by step: a leaf moves while its unit is open, and keeps every bit while it is closed."""
    model, data = perceptron(algorithm), federation(RAGGED)
    local = LocalTraining(2, 4, SGD(0.1, weight_decay=1e-2))
    watched = replace(algorithm, corrections=(*algorithm.corrections, Witness(2 * 5)))
    wrong: list[str] = []
    for engine in (Sequential(model, data), Stacked(model, data)):
        trained(watched, local, 1, data, model, engine)
        sent, memories = model.init(0)[0], engine.save()
        for client, own in enumerate(data.clients):
            masks = plan([own], [client], local, algorithm.schedule, len(model.units), 0, 0, 0).masks
            path = memories[str(client)]["slots"]["witness"]
            for unit, leaves in enumerate(model.units):
                for k in (k for k in leaves if k in path):
                    models = [sent[k], *path[k][-len(masks) :]]
                    moves = [not torch.equal(a, b) for a, b in pairwise(models)]
                    right = moves == [mask[unit] for mask in masks]
                    wrong += [] if right else [f"client {client}, {k}"]
    return holds(
        not wrong, f"every step of {len(RAGGED)} ragged clients on both engines; wrong: {wrong or 'none'}"
    )
