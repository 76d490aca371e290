"""Reductions of methods that keep a part with the client: alone it is plain SGD by torch.optim."""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor
from torch.nn import functional as F

from kedge.algorithms.fedavg import fedavg
from kedge.audit.bed import Witness
from kedge.audit.finding import Finding, agreed, holds
from kedge.audit.problems import CLASSES, ENGINES, RAGGED, federation, perceptron, trained
from kedge.audit.properties.frozen_units import last
from kedge.audit.references.plain_sgd import Opened, bottom_up, features, forward, proximal, torch_sgd
from kedge.audit.references.reductions import LOCAL, TOLERANCE, after
from kedge.core.algorithm import Algorithm, LocalTraining
from kedge.core.correction import Step
from kedge.core.losses import weighted_mean
from kedge.core.optimizers import SGD
from kedge.core.schedules import FixLast
from kedge.core.tree import Leaves
from kedge.data.federation import Federation

PLAIN = LocalTraining(3, 4, SGD(0.2, 0.9, weight_decay=1e-2, decay=0.9), clip=0.5)
SIZE = 10

every_unit: Opened = partial(bottom_up, 0)


def base_alone(step: int, steps: int) -> Sequence[bool]:
    """The head never trains."""
    return True, True, False


def head_for_two_epochs(step: int, steps: int) -> Sequence[bool]:
    """Of three epochs the head trains in two, the base in the last."""
    head = 3 * step <= 2 * steps
    return not head, not head, head


def personal(algorithm: Algorithm, local: LocalTraining, data: Federation) -> dict[str, list[Leaves]]:
    """Every client's whole model after three rounds, on every engine."""
    model, found = perceptron(algorithm), {}
    for name, engine in ENGINES.items():
        place = engine(model, data)
        server = trained(algorithm, local, 3, data, model, place).server
        everyone = range(len(data.clients))
        found[name] = [place.personal(client, server.shared, server.buffers)[0] for client in everyone]
    return found


def one_client(algorithm: Algorithm, opened: Opened) -> Finding:
    """What one client shares and what it keeps take together the path of plain SGD."""
    data = federation([SIZE])
    want = torch_sgd(PLAIN, 3, data, perceptron(), partial(proximal, 0.0), opened)
    got = {name: one for name, (one,) in personal(algorithm, PLAIN, data).items()}
    return agreed(dict.fromkeys(got, want), got, want, TOLERANCE)


def under_a_frozen_head(algorithm: Algorithm) -> Finding:
    """LG-FedAvg where the shared head never trains: every client's model is that of training alone."""
    data = federation(RAGGED)
    found = personal(replace(algorithm, schedule=FixLast(1)), PLAIN, data)
    alone = [
        torch_sgd(PLAIN, 3, data, perceptron(), partial(proximal, 0.0), base_alone, client)
        for client in range(len(data.clients))
    ]
    want = {str(client): one for client, one in enumerate(alone)}
    got = {name: {str(client): own for client, own in enumerate(rows)} for name, rows in found.items()}
    return agreed(dict.fromkeys(got, want), got, want, TOLERANCE)


def two_heads(counts: Tensor, w: Leaves, start: Leaves, x: Tensor, y: Tensor) -> Tensor:
    """FedROD's losses: −log(n_y e^{a_y} / Σ_c n_c e^{a_c}), and cross-entropy that trains ψ_i alone."""
    a, phi = forward(w, x), features(w, x)
    mass = counts * a.exp()
    generic = -(mass.gather(1, y[:, None])[:, 0] / mass.sum(1)).log().mean()
    own = F.linear(phi.detach(), w["personal.weight"], w["personal.bias"])
    return generic + F.cross_entropy(a.detach() + own, y)


def fedrod_alone(algorithm: Algorithm) -> Finding:
    """One client: both heads by torch.optim, class counts of all it holds, batches of four.

    Without a clip, which would hold the two parts apart.
    """
    local, data = replace(PLAIN, clip=None), federation([SIZE])
    counts = torch.bincount(data.pool.y[data.clients[0]], minlength=CLASSES).clamp(min=1e-9)
    want = torch_sgd(local, 3, data, perceptron(algorithm), partial(two_heads, counts), every_unit)
    got = {name: one for name, (one,) in personal(algorithm, local, data).items()}
    return agreed(dict.fromkeys(got, want), got, want, TOLERANCE)


def balanced(step: Step) -> Tensor:
    """−log(n_y e^{a_y} / Σ_c n_c e^{a_c})."""
    mass = step.facts["class_counts"].clamp(min=1e-9) * step.out.logits.exp()
    share = mass.gather(1, step.batch.y[:, None])[:, 0] / mass.sum(1)
    return weighted_mean(-share.log(), step.batch)


def fedrod_generic(algorithm: Algorithm) -> Finding:
    """What FedROD shares is FedAvg with the balanced loss: the personal heads have no influence, nor clip."""
    want = after(replace(fedavg(), loss=balanced), LOCAL, 3, RAGGED)
    return agreed(want, after(algorithm, LOCAL, 3, RAGGED), want, TOLERANCE)


def head_moves(algorithm: Algorithm, moves: bool) -> Finding:
    """After three rounds no entry of the head is the initial one, or every bit is, on server and clients.

    The base has moved in either case.
    """
    model, data = perceptron(algorithm), federation(RAGGED)
    watched = replace(algorithm, corrections=(*algorithm.corrections, Witness(1)))
    start, wrong = model.init(0)[0], []
    for name, engine in ENGINES.items():
        place = engine(model, data)
        server = trained(watched, LOCAL, 3, data, model, place).server
        ends = {k: last(row["slots"]["witness"]) for k, row in place.save().items()}
        for who, end in {"server": server.shared, **ends}.items():
            for number, unit in enumerate(model.units, 1):
                moving = moves or number < len(model.units)
                differ = [end[k] != start[k] for k in unit]
                right = all(d.all() for d in differ) if moving else not any(d.any() for d in differ)
                wrong += [] if right else [f"{name}, {who}: unit {number}"]
    verb = "moves" if moves else "rests"
    return holds(not wrong, f"the head {verb} on both engines; wrong: {wrong or 'none'}")
