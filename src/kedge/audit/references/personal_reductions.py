"""Settings in which methods whose clients keep a part of the model equal torch.optim.SGD or FedAvg."""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor
from torch.nn import functional as F

from kedge.algorithms.fedavg import fedavg
from kedge.audit.finding import Finding, compare_trees, no_violations
from kedge.audit.problems import CLASSES, RAGGED, federation, perceptron
from kedge.audit.recorded_run import StepRecorder, last_model
from kedge.audit.references.plain_sgd import (
    OpenUnits,
    features,
    logits,
    open_bottom_up,
    proximal_loss,
    train_by_torch,
)
from kedge.audit.references.reductions import LOCAL, TOLERANCE, trained_model
from kedge.audit.training import ENGINES, train_all_clients
from kedge.core.algorithm import Algorithm, LocalTraining
from kedge.core.correction import Step
from kedge.core.losses import weighted_mean
from kedge.core.optimizers import SGD
from kedge.core.schedules import FixLast
from kedge.core.tree import Leaves
from kedge.data.federation import Federation

PLAIN = LocalTraining(3, 4, SGD(0.2, 0.9, weight_decay=1e-2, decay=0.9), clip=0.5)
SIZE = 10

open_all: OpenUnits = partial(open_bottom_up, 0)


def open_body(step: int, steps: int) -> Sequence[bool]:
    """The body trains in every step, the head never."""
    return True, True, False


def open_head_for_two_epochs(step: int, steps: int) -> Sequence[bool]:
    """The head trains in the first two of three epochs, the body in the last."""
    head = 3 * step <= 2 * steps
    return not head, not head, head


def personal_models(algorithm: Algorithm, local: LocalTraining, data: Federation) -> dict[str, list[Leaves]]:
    """Every client's whole model after three rounds, by engine."""
    model, models = perceptron(algorithm), {}
    for name, make in ENGINES.items():
        engine = make(model, data)
        server = train_all_clients(algorithm, local, 3, data, model, engine).server
        clients = range(len(data.clients))
        models[name] = [engine.personal(client, server.shared, server.buffers)[0] for client in clients]
    return models


def one_client_is_sgd(algorithm: Algorithm, opened: OpenUnits) -> Finding:
    """The shared and the kept part of a single client train together as by torch.optim.SGD."""
    data = federation([SIZE])
    expected = train_by_torch(PLAIN, 3, data, perceptron(), partial(proximal_loss, 0.0), opened)
    actual = {name: model for name, (model,) in personal_models(algorithm, PLAIN, data).items()}
    return compare_trees(dict.fromkeys(actual, expected), actual, expected, TOLERANCE)


def frozen_head_isolates_clients(algorithm: Algorithm) -> Finding:
    """If LG-FedAvg's shared head never trains, each client's model is as after training alone."""
    data = federation(RAGGED)
    by_engine = personal_models(replace(algorithm, schedule=FixLast(1)), PLAIN, data)
    alone = [
        train_by_torch(PLAIN, 3, data, perceptron(), partial(proximal_loss, 0.0), open_body, client)
        for client in range(len(data.clients))
    ]
    expected = {str(client): model for client, model in enumerate(alone)}
    actual = {name: {str(k): model for k, model in enumerate(models)} for name, models in by_engine.items()}
    return compare_trees(dict.fromkeys(actual, expected), actual, expected, TOLERANCE)


def two_head_loss(counts: Tensor, w: Leaves, start: Leaves, x: Tensor, y: Tensor) -> Tensor:
    """FedROD's two losses: −log(n_y e^{a_y} / Σ_c n_c e^{a_c}), and a cross-entropy that trains only ψ_i."""
    a, phi = logits(w, x), features(w, x)
    mass = counts * a.exp()
    generic = -(mass.gather(1, y[:, None])[:, 0] / mass.sum(1)).log().mean()
    psi = F.linear(phi.detach(), w["personal.weight"], w["personal.bias"])
    return generic + F.cross_entropy(a.detach() + psi, y)


def fedrod_of_one_client(algorithm: Algorithm) -> Finding:
    """A single client trains both heads as by torch.optim, with the class counts of all its samples.

    There is no clip: the kernel clips the personal head separately, `train_by_torch` all leaves together.
    """
    local, data = replace(PLAIN, clip=None), federation([SIZE])
    counts = torch.bincount(data.pool.y[data.clients[0]], minlength=CLASSES).clamp(min=1e-9)
    expected = train_by_torch(local, 3, data, perceptron(algorithm), partial(two_head_loss, counts), open_all)
    actual = {name: model for name, (model,) in personal_models(algorithm, local, data).items()}
    return compare_trees(dict.fromkeys(actual, expected), actual, expected, TOLERANCE)


def balanced_loss(step: Step) -> Tensor:
    """−log(n_y e^{a_y} / Σ_c n_c e^{a_c})."""
    mass = step.facts["class_counts"].clamp(min=1e-9) * step.out.logits.exp()
    share = mass.gather(1, step.batch.y[:, None])[:, 0] / mass.sum(1)
    return weighted_mean(-share.log(), step.batch)


def fedrod_shares_balanced_fedavg(algorithm: Algorithm) -> Finding:
    """FedROD's shared leaves train as FedAvg with the balanced loss: personal heads do not change them."""
    expected = trained_model(replace(fedavg(), loss=balanced_loss), LOCAL, 3, RAGGED)
    return compare_trees(expected, trained_model(algorithm, LOCAL, 3, RAGGED), expected, TOLERANCE)


def head_trains(algorithm: Algorithm, trains: bool) -> Finding:
    """Whether the head trains in three rounds: every entry changes, or (`trains=False`) every bit is kept.

    This must hold for the server's model and all clients' models. The body trains in either case.
    """
    model, data = perceptron(algorithm), federation(RAGGED)
    recorded = replace(algorithm, corrections=(*algorithm.corrections, StepRecorder(1)))
    start, wrong = model.init(0)[0], []
    for name, make in ENGINES.items():
        engine = make(model, data)
        server = train_all_clients(recorded, LOCAL, 3, data, model, engine).server
        ends = {f"client {k}": last_model(memory) for k, memory in engine.save().items()}
        for owner, end in {"server": server.shared, **ends}.items():
            for number, unit in enumerate(model.units, 1):
                training = trains or number < len(model.units)
                differ = [end[k] != start[k] for k in unit]
                right = all(d.all() for d in differ) if training else not any(d.any() for d in differ)
                wrong += [] if right else [f"{name}, {owner}: unit {number}"]
    verb = "trains" if trains else "never trains"
    return no_violations(f"the head {verb} on both engines", wrong)
