"""Frozen leaves keep every bit: no gradient, weight decay, momentum or server rule reaches them."""

from collections.abc import Mapping
from dataclasses import replace
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from kedge.audit.bed import Witness
from kedge.audit.finding import Finding, holds
from kedge.audit.problems import (
    ALL_CLIENTS,
    ENGINES,
    IMAGE,
    SIZES,
    SOME_CLIENTS,
    convolutional,
    federation,
    perceptron,
    train_rounds,
    trained,
)
from kedge.audit.properties.optimizers import takes_momentum
from kedge.core.algorithm import Algorithm, LocalTraining, Stage
from kedge.core.optimizers import SGD
from kedge.core.schedules import Clock, Mask
from kedge.core.server import initial_server
from kedge.core.tree import Leaves, flatten
from kedge.data.batches import plan

LOCAL = LocalTraining(1, 4, SGD(0.1, weight_decay=1e-2))


def second_unit(clock: Clock, units: int) -> Mask:
    """Only the second unit ever trains."""
    return tuple(unit == 1 for unit in range(units))


def no_unit(clock: Clock, units: int) -> Mask:
    """No unit trains."""
    return (False,) * units


def all_from_second_round(clock: Clock, units: int) -> Mask:
    """The first unit trains in round 0, all units from then on."""
    return tuple(unit == 0 or clock.round > 0 for unit in range(units))


def never_opened(algorithm: Algorithm) -> Finding:
    """Units that never train keep every bit, on the server, on clients and in all memories.

    With momentum, where the method allows it.
    """
    model, data = perceptron(algorithm), federation()
    momentum = 0.9 if takes_momentum(algorithm) else 0.0
    local = LocalTraining(2, 4, SGD(0.1, momentum, weight_decay=1e-2), clip=1.0)
    watched = replace(algorithm, schedule=second_unit, corrections=(*algorithm.corrections, Witness(1)))
    start = model.init(0)[0]
    first = initial_server(watched, model, start, {})
    closed = [k for k in start if k not in model.units[1] and k not in model.extra]
    wrong: list[str] = []
    for make in ENGINES.values():
        engine = make(model, data)
        engine.begin(Stage(watched, 1, local), start, frozenset())
        initial = engine.memories.of(0, first.shared, {})["slots"]
        server = trained(watched, local, 3, data, model, engine).server
        rows = engine.save().values()
        models = [server.shared, *({**last(row["slots"]["witness"]), **row["local"]} for row in rows)]
        wrong += [k for k in closed if not all(torch.equal(one[k], start[k]) for one in models if k in one)]
        wrong += [
            k for k in model.units[1] if any(torch.equal(one[k], start[k]) for one in models if k in one)
        ]
        wrong += [k for k in closed if not unchanged(first.slots, server.slots, k, start[k])]
        wrong += [k for k in closed if not all(unchanged(initial, row["slots"], k, start[k]) for row in rows)]
    return holds(
        not wrong, f"{len(closed)} leaves frozen on both engines; wrong: {sorted(set(wrong)) or 'none'}"
    )


def last(path: Leaves) -> Leaves:
    """A witness's newest model."""
    return {k: v[-1] for k, v in path.items()}


def unchanged(before: Mapping[str, Any], after: Mapping[str, Any], leaf: str, start: Tensor) -> bool:
    """Whether every entry of `leaf` in the memories is as before, or a copy of its first value."""
    now = flatten(after)
    return all(
        torch.equal(now[k], v) or torch.equal(now[k], start)
        for k, v in flatten(before).items()
        if k.endswith("/" + leaf)
    )


def opened_late(algorithm: Algorithm) -> Finding:
    """Step by step: a leaf moves while its unit is open, and keeps every bit while it is closed."""
    model, data = perceptron(algorithm), federation()
    local = replace(LOCAL, epochs=2)
    steps = local.epochs * -(-max(SIZES) // local.batch)
    watched = replace(algorithm, corrections=(*algorithm.corrections, Witness(steps)))
    wrong: list[str] = []
    for make in ENGINES.values():
        engine = make(model, data)
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
        not wrong, f"every step of {len(SIZES)} ragged clients on both engines; wrong: {wrong or 'none'}"
    )


def opened_in_second_round(algorithm: Algorithm) -> Finding:
    """Units that open in the second round have their first bits until then, and all move afterwards."""
    scheduled, data = replace(algorithm, schedule=all_from_second_round), federation(shape=IMAGE)
    model = convolutional(scheduled)
    start = {k: v.double() for k, v in model.init(0)[0].items()}
    wrong = []
    for name, engine in ENGINES.items():
        for rounds in (1, 2):
            server = train_rounds(scheduled, LOCAL, engine(model, data), model, data, ALL_CLIENTS[:rounds])
            kept = {k for k, v in server.shared.items() if torch.equal(v, start[k])}
            closed = {k for unit in model.units[1:] for k in unit} & set(server.shared)
            if kept != (closed if rounds == 1 else set()):
                wrong.append(f"{name}, round {rounds}")
    return holds(not wrong, f"two rounds on both engines; wrong: {wrong or 'none'}")


def none_opened(algorithm: Algorithm) -> Finding:
    """The server's model keeps every bit where no unit trains."""
    frozen, data = replace(algorithm, schedule=no_unit), federation(shape=IMAGE)
    model = convolutional(frozen, "none")
    start, wrong = model.init(0)[0], []
    for name, engine in ENGINES.items():
        server = train_rounds(frozen, LOCAL, engine(model, data), model, data, SOME_CLIENTS)
        wrong += [f"{name}, {k}" for k, v in server.shared.items() if not torch.equal(v, start[k].double())]
    return holds(not wrong, f"three rounds on both engines; wrong: {wrong or 'none'}")
