"""Frozen leaves keep every bit: no gradient, weight decay, momentum or server rule changes them."""

from collections.abc import Mapping
from dataclasses import replace
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from kedge.audit.finding import Finding, no_violations
from kedge.audit.problems import (
    ALL_CLIENTS,
    IMAGE,
    SIZES,
    SOME_CLIENTS,
    convolutional,
    federation,
    perceptron,
)
from kedge.audit.properties.optimizers import takes_momentum
from kedge.audit.recorded_run import RECORDED, StepRecorder, last_model
from kedge.audit.training import ENGINES, train_all_clients, train_rounds
from kedge.core.algorithm import Algorithm, LocalTraining, Stage
from kedge.core.optimizers import SGD
from kedge.core.schedules import Clock, Mask
from kedge.core.server import Server, initial_server
from kedge.core.tree import Leaves, flatten
from kedge.data.batches import PlanSettings, RoundNumbers, plan
from kedge.engines.engine import Engine

LOCAL = LocalTraining(1, 4, SGD(0.1, weight_decay=1e-2))


def open_second_unit(clock: Clock, units: int) -> Mask:
    """Only the second unit trains."""
    return tuple(unit == 1 for unit in range(units))


def open_no_unit(clock: Clock, units: int) -> Mask:
    """No unit trains."""
    return (False,) * units


def open_all_from_second_round(clock: Clock, units: int) -> Mask:
    """The first unit trains in round 0, all units in later rounds."""
    return tuple(unit == 0 or clock.round > 0 for unit in range(units))


def closed_units_keep_their_bits(algorithm: Algorithm) -> Finding:
    """Units that never train keep every bit, on the server, on clients and in all memories.

    The optimizer has momentum if the method allows it.
    """
    model, data = perceptron(algorithm), federation()
    momentum = 0.9 if takes_momentum(algorithm) else 0.0
    local = LocalTraining(2, 4, SGD(0.1, momentum, weight_decay=1e-2), clip=1.0)
    corrections = (*algorithm.corrections, StepRecorder(1))
    recorded = replace(algorithm, schedule=open_second_unit, corrections=corrections)
    start = model.init(0)[0]
    first = initial_server(recorded, model, start, {})
    open_leaves = model.units[1]
    closed = [k for k in start if k not in open_leaves and k not in model.extra]
    wrong: list[str] = []
    for make in ENGINES.values():
        engine = make(model, data)
        engine.begin(Stage(recorded, 1, local), start, frozenset())
        initial = engine.memories.of(0, first.shared, {})["slots"]
        server = train_all_clients(recorded, local, 3, data, model, engine).server
        models = all_models(server, engine)
        wrong += [k for k in closed if not all(torch.equal(w[k], start[k]) for w in models if k in w)]
        wrong += [k for k in open_leaves if any(torch.equal(w[k], start[k]) for w in models if k in w)]
        wrong += [k for k in closed if not unchanged(first.slots, server.slots, k, start[k])]
        memories = [memory["slots"] for memory in engine.save().values()]
        wrong += [k for k in closed if not all(unchanged(initial, slots, k, start[k]) for slots in memories)]
    return no_violations(f"{len(closed)} leaves frozen on both engines", sorted(set(wrong)))


def all_models(server: Server, engine: Engine) -> list[Leaves]:
    """The server's model and every client's."""
    memories = engine.save().values()
    return [server.shared, *({**last_model(memory), **memory["local"]} for memory in memories)]


def unchanged(before: Mapping[str, Any], after: Mapping[str, Any], leaf: str, start: Tensor) -> bool:
    """Whether each entry of `leaf` in `after` equals the entry in `before`, or the initial leaf `start`."""
    new = flatten(after)
    return all(
        torch.equal(new[k], v) or torch.equal(new[k], start)
        for k, v in flatten(before).items()
        if k.endswith("/" + leaf)
    )


def leaves_move_while_open(algorithm: Algorithm) -> Finding:
    """In every step, a leaf moves if its unit is open, and keeps every bit if it is closed."""
    model, data = perceptron(algorithm), federation()
    local = replace(LOCAL, epochs=2)
    steps = local.epochs * -(-max(SIZES) // local.batch)
    recorded = replace(algorithm, corrections=(*algorithm.corrections, StepRecorder(steps)))
    wrong: list[str] = []
    for make in ENGINES.values():
        engine = make(model, data)
        train_all_clients(recorded, local, 1, data, model, engine)
        start, memories = model.init(0)[0], engine.save()
        for client, rows in enumerate(data.clients):
            settings = PlanSettings(local, algorithm.schedule, len(model.units))
            masks = plan([rows], [client], settings, RoundNumbers()).masks
            path = memories[str(client)]["slots"][RECORDED]
            for unit, leaves in enumerate(model.units):
                for k in (k for k in leaves if k in path):
                    models = [start[k], *path[k][-len(masks) :]]
                    moves = [not torch.equal(a, b) for a, b in pairwise(models)]
                    right = moves == [mask[unit] for mask in masks]
                    wrong += [] if right else [f"client {client}, {k}"]
    return no_violations(f"every step of {len(SIZES)} clients of different sizes on both engines", wrong)


def units_open_in_second_round(algorithm: Algorithm) -> Finding:
    """Units that open in the second round keep their bits in the first, and all move in the second."""
    scheduled, data = replace(algorithm, schedule=open_all_from_second_round), federation(shape=IMAGE)
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
    return no_violations("two rounds on both engines", wrong)


def server_keeps_its_bits(algorithm: Algorithm) -> Finding:
    """The server's model keeps every bit if no unit trains."""
    frozen, data = replace(algorithm, schedule=open_no_unit), federation(shape=IMAGE)
    model = convolutional(frozen, "none")
    start, wrong = model.init(0)[0], []
    for name, engine in ENGINES.items():
        server = train_rounds(frozen, LOCAL, engine(model, data), model, data, SOME_CLIENTS)
        wrong += [f"{name}, {k}" for k, v in server.shared.items() if not torch.equal(v, start[k].double())]
    return no_violations("three rounds on both engines", wrong)
