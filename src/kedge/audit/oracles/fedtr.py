"""Oracles fedtr_drift, fedtr_feature and fedtr_centroids of the specification, and its two special cases."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from kedge.algorithms.fedtr import ReleasedDrift
from kedge.audit.bed import Bed, bed_q, local_q
from kedge.audit.finding import Finding, Pair, compare_numbers
from kedge.audit.oracles.averaging import TOLERANCE
from kedge.audit.recorded_run import RECORDED, FixedCohorts, StepRecorder, record_rounds
from kedge.audit.specification import ORACLES
from kedge.audit.training import ENGINES
from kedge.config.task import Task
from kedge.core.algorithm import Algorithm, LocalTraining, Stage
from kedge.core.correction import Step
from kedge.core.losses import weighted_mean
from kedge.core.model import Model
from kedge.core.optimizers import SGD
from kedge.core.server import Reply
from kedge.data.dataset import Dataset
from kedge.data.federation import Federation, federation_from_datasets
from kedge.engines.engine import Engine, Order
from kedge.nn.from_module import from_module
from kedge.running.runner import run

GRADIENT = "algorithm1_gradient_d_2_rounds"
ACCUMULATE = "appendix_rule_d+=delta_w_2_rounds (FedDC-like)"


def drift(algorithm: Algorithm, case: str) -> Finding:
    """Bed Q, two rounds: w_i, d_i, the uploads, and the server's w."""
    rounds: Sequence[Mapping[str, Any]] = ORACLES["fedtr_drift"]["expected"][case]
    pairs = []
    for name, engine in ENGINES.items():
        states = record_rounds(bed_q(), [(algorithm, len(rounds))], local_q(), [[0, 1]] * len(rounds), engine)
        for number, (expected, state) in enumerate(zip(rounds, states, strict=True), 1):
            where = f"{name}, round {number}"
            for client in range(2):
                w = float(state.models(client)["w"][-1])
                d = float(state.memories[str(client)]["slots"]["released-drift"]["d"]["w"])
                pairs += [
                    Pair(f"{where}, w_{client}", expected["w_i"][client], w),
                    Pair(f"{where}, d_{client}", expected["d_i"][client], d),
                    Pair(f"{where}, w_{client} + d_{client}", expected["uploads"][client], w + d),
                ]
            pairs.append(
                Pair(f"{where}, w", expected["w_next_size_weighted"], float(state.server.shared["w"]))
            )
    return compare_numbers(pairs, TOLERANCE)


def one_participant(algorithm: Algorithm, case: str) -> Finding:
    """With one client in a round, the server's w is that client's upload."""
    (first, _) = ORACLES["fedtr_drift"]["expected"][case]
    pairs = [
        Pair(f"{name}, client {client}", expected, float(state.server.shared["w"]))
        for client, expected in enumerate(first["uploads"])
        for name, engine in ENGINES.items()
        for state in record_rounds(bed_q(), [(algorithm, 1)], local_q(), [[client]], engine)
    ]
    return compare_numbers(pairs, TOLERANCE)


def drift_descends(algorithm: Algorithm) -> Finding:
    """After each step, d has moved by −η_g times the gradient by d of λ_G (d + w − wᵗ)²; by autograd."""
    (correction,) = (c for c in algorithm.corrections if isinstance(c, ReleasedDrift))
    local, pairs = replace(local_q(), epochs=1), []
    for name, engine in ENGINES.items():
        sent, drifts = float(ORACLES["test_bed_Q"]["w0"]), [0.0, 0.0]
        for number, state in enumerate(
            record_rounds(bed_q(), [(algorithm, 2)], local, [[0, 1]] * 2, engine), 1
        ):
            for client in range(2):
                d = torch.tensor(drifts[client], dtype=torch.float64, requires_grad=True)
                objective = correction.strength * (d + state.models(client)["w"][-1] - sent) ** 2
                (gradient,) = torch.autograd.grad(objective.sum(), d)
                drifts[client] = float(state.memories[str(client)]["slots"]["released-drift"]["d"]["w"])
                expected = float(d.detach() - correction.rate * gradient)
                pairs.append(Pair(f"{name}, round {number}, d_{client}", expected, drifts[client]))
            sent = float(state.server.shared["w"])
    return compare_numbers(pairs, TOLERANCE)


def half_rate_stalls(algorithm: Algorithm) -> Finding:
    """A special case of the gradient rule: with η_g = ½, d_i = wᵗ − w_i after every step. Clients send wᵗ."""
    start = float(ORACLES["test_bed_Q"]["w0"])
    pairs = []
    for name, engine in ENGINES.items():
        for steps in (1, 3):
            local = replace(local_q(), epochs=steps)
            states = record_rounds(bed_q(), [(algorithm, 2)], local, [[0, 1]] * 2, engine)
            for number, state in enumerate(states, 1):
                where = f"{name}, {steps} steps, round {number}"
                pairs.append(Pair(f"{where}, w", start, float(state.server.shared["w"])))
                moved = min(abs(float(state.models(client)["w"][-1]) - start) for client in range(2))
                pairs.append(Pair(f"{where}, every client has moved", 1.0, float(moved > 0.05)))
    return compare_numbers(pairs, TOLERANCE)


def accumulate_doubles(algorithm: Algorithm) -> Finding:
    """A special case of the accumulate rule: in the first round, w moves by 2 Σ λ_i (w_i − wᵗ)."""
    q = ORACLES["test_bed_Q"]
    start, sizes = float(q["w0"]), q["n_samples"]
    pairs = []
    for name, engine in ENGINES.items():
        (state,) = record_rounds(bed_q(), [(algorithm, 1)], local_q(), [[0, 1]], engine)
        moves = [float(state.models(client)["w"][-1]) - start for client in range(2)]
        mean = sum(n * move for n, move in zip(sizes, moves, strict=True)) / sum(sizes)
        pairs.append(Pair(name, 2 * mean, float(state.server.shared["w"]) - start))
    return compare_numbers(pairs, TOLERANCE)


def second_output(step: Step) -> Tensor:
    """½ (output 1 − y)², without output 0."""
    return weighted_mean((step.out.logits[:, 1] - step.batch.y) ** 2 / 2, step.batch)


def two_layers(s: float, p: float) -> Model:
    """A network with the feature φ = s·x and the outputs (0, p)·φ. The label of the oracle's sample is 1."""
    module = nn.Sequential(nn.Linear(1, 1, bias=False), nn.Linear(1, 2, bias=False)).double()
    module.load_state_dict({"0.weight": torch.tensor([[s]]), "1.weight": torch.tensor([[0.0], [p]])})
    return from_module(module)


def train_one_round(
    algorithm: Algorithm,
    bed: Bed,
    local: LocalTraining,
    centroid: float,
    engine: Callable[[Model, Federation], Engine],
) -> tuple[Reply, Mapping[str, Any]]:
    """Train the only client for one round, with a `centroid` of class 1: its upload and memory by slot."""
    corrections = (*algorithm.corrections, StepRecorder(1))
    trainer, params = engine(bed.model, bed.federation), bed.model.init(0)[0]
    trainer.begin(
        Stage(replace(algorithm, loss=bed.loss, corrections=corrections), 1, local), params, frozenset()
    )
    mean, known = torch.tensor([[0.0], [centroid]]), torch.tensor([0.0, 1.0])
    sent = {
        "centroids": {"mean": mean.double(), "known": known.double()},
        "released-drift": {},
        RECORDED: {},
    }
    return trainer.train(Order(0, 0, 0, params, {}, sent), [0]).reply(), trainer.save()["0"]["slots"]


def features_and_drift(algorithm: Algorithm) -> Finding:
    """s, p and d after each of two steps, and the upload: s + d_s, p + d_p and the local centroid."""
    given, target = ORACLES["fedtr_feature"]["inputs"], ORACLES["fedtr_feature"]["expected"]
    data = Dataset(torch.tensor([[float(given["x"])]]), torch.tensor([given["y"]]))
    bed = Bed(
        two_layers(given["s0"], given["p0"]),
        federation_from_datasets([data], None).to("cpu", torch.float64),
        second_output,
    )
    start = {"s": given["s0"], "p": given["p0"]}
    pairs = []
    for name, engine in ENGINES.items():
        for steps, expected in enumerate(target["steps"], 1):
            local = LocalTraining(steps, 1, SGD(given["eta_f"]))
            reply, slots = train_one_round(algorithm, bed, local, given["centroid"], engine)
            for short, leaf in (("s", "0.weight"), ("p", "1.weight")):
                w, d = slots[RECORDED][leaf][-1][-1, 0], slots["released-drift"]["d"][leaf][-1, 0]
                pairs.append(Pair(f"{name}, {short} after step {steps}", expected[short], float(w)))
                pairs.append(Pair(f"{name}, d_{short} after step {steps}", expected[f"d_{short}"], float(d)))
                if steps == given["steps"]:
                    sent = start[short] + float(reply.mean["delta"][leaf][-1, 0])
                    pairs.append(Pair(f"{name}, {short} as sent", target[f"upload_{short}"], sent))
        centroid = reply.mean["slots"]["centroids"]["mean"][1, 0]
        pairs.append(
            Pair(f"{name}, local centroid", target["local_centroid_after (mean phi)"], float(centroid))
        )
    return compare_numbers(pairs, TOLERANCE)


def client_of_classes(classes: Iterable[Mapping[str, Any]]) -> Dataset:
    """A client with n samples of each class around the centroid c."""
    rows, labels = [], []
    for label, given in enumerate(classes):
        shifts = [i - (given["n"] - 1) / 2 for i in range(given["n"])]
        rows += [[c + shift for c in given["c"]] for shift in shifts]
        labels += [label] * given["n"]
    return Dataset(torch.tensor(rows, dtype=torch.float64), torch.tensor(labels))


def centroids(algorithm: Algorithm) -> Finding:
    """Global centroids over three rounds, with the samples as features: client 2 alone, both, client 2 alone.

    A class without samples among the participants keeps its centroid, if it has one.
    """
    given, expected = ORACLES["fedtr_centroids"]["inputs"], ORACLES["fedtr_centroids"]["expected"]
    clients = [client_of_classes(given[client].values()) for client in ("client1", "client2")]
    data = federation_from_datasets(clients, None).to("cpu", torch.float64)
    model = from_module(nn.Linear(2, 2).double())
    c_20, no_mean = given["client2"]["class0"]["c"], [0.0, 0.0]
    c_0, c_1 = expected["C_class0"], expected["C_class1"]
    # Participants, centroids of both classes, and whether they are known.
    rounds = [([1], [c_20, no_mean], [1, 0]), ([0, 1], [c_0, c_1], [1, 1]), ([1], [c_20, c_1], [1, 1])]
    participation = FixedCohorts(cohorts=tuple(tuple(cohort) for cohort, _, _ in rounds))
    pairs = []
    for name, engine in ENGINES.items():
        for number, (_, means, known) in enumerate(rounds, 1):
            stage = Stage(algorithm, number, LocalTraining(1, 2, SGD(0.1)))
            server = run(Task((stage,), model, data, participation), engine(model, data)).server
            state = server.slots["centroids"]
            for c in range(2):
                where = f"{name}, round {number}, class {c}"
                pairs.append(Pair(f"{where}, known", known[c], float(state["known"][c])))
                pairs += [
                    Pair(f"{where}, C[{axis}]", v, float(state["mean"][c, axis]))
                    for axis, v in enumerate(means[c])
                ]
    return compare_numbers(pairs, TOLERANCE)
