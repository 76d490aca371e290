"""Oracles scaffold and fedpvr of the specification; c_i with a decaying learning rate and with momentum."""

from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import Tensor

from kedge.audit.bed import bed_q, local_q, quadratic_bed
from kedge.audit.finding import Finding, Pair, compare_numbers
from kedge.audit.oracles.averaging import TOLERANCE
from kedge.audit.recorded_run import record_rounds
from kedge.audit.specification import ORACLES
from kedge.audit.training import ENGINES
from kedge.core.algorithm import Algorithm, LocalTraining
from kedge.core.client import unit_gradient_distance
from kedge.core.correction import Step
from kedge.core.losses import weighted_mean
from kedge.core.optimizers import SGD


def scaffold(algorithm: Algorithm, case: str) -> Finding:
    """Client models, every c_i, c and x after each round of `case`."""
    rounds = ORACLES["scaffold"]["expected"][case]
    cohorts = [expected["participants"] for expected in rounds]
    pairs = []
    for name, engine in ENGINES.items():
        states = record_rounds(bed_q(), [(algorithm, len(rounds))], local_q(), cohorts, engine)
        for number, (expected, state) in enumerate(zip(rounds, states, strict=True), 1):
            where = f"{name}, round {number}"
            for client, value in expected["client_models"].items():
                pairs.append(
                    Pair(f"{where}, client {client}", value, float(state.models(int(client))["w"][-1]))
                )
            for client, value in enumerate(expected["c_i"]):
                memory = state.memories.get(str(client))
                c_i = float(memory["slots"]["control"]["c"]["w"]) if memory else 0.0
                pairs.append(Pair(f"{where}, c_{client}", value, c_i))
            pairs.append(Pair(f"{where}, c", expected["c"], float(state.server.slots["control"]["c"]["w"])))
            pairs.append(Pair(f"{where}, x", expected["x_next"], float(state.server.shared["w"])))
    return compare_numbers(pairs, TOLERANCE)


def fedpvr(algorithm: Algorithm) -> Finding:
    """Two independent parameters, body s and head p, both with bed Q's objectives. Only p is corrected."""
    q, rounds = ORACLES["test_bed_Q"], ORACLES["fedpvr"]["expected"]
    rows = [(a, b, b) for a, b in zip(q["a"], q["b"], strict=True)]
    bed = quadratic_bed({"s": [q["w0"]], "p": [q["w0"]]}, rows, q["n_samples"])
    pairs = []
    for name, engine in ENGINES.items():
        states = record_rounds(bed, [(algorithm, len(rounds))], local_q(), [[0, 1]] * len(rounds), engine)
        for number, (expected, state) in enumerate(zip(rounds, states, strict=True), 1):
            where, c = f"{name}, round {number}", state.server.slots["control"]["c"]
            for leaf, part in (("s", "body"), ("p", "head")):
                actual = float(state.server.shared[leaf])
                pairs.append(Pair(f"{where}, {part}", expected[f"{part}_server"], actual))
                for client, value in enumerate(expected[f"{part}_clients"]):
                    actual = float(state.models(client)[leaf][-1])
                    pairs.append(Pair(f"{where}, {part} of client {client}", value, actual))
            for client, value in enumerate(expected["c_i_head"]):
                c_i = state.memories[str(client)]["slots"]["control"]["c"]
                pairs.append(Pair(f"{where}, c_{client}", value, float(c_i["p"])))
            pairs.append(Pair(f"{where}, c", expected["c_head"], float(c["p"])))
    return compare_numbers(pairs, TOLERANCE)


def mean_gradient(algorithm: Algorithm, corrected: Sequence[str] = ("s", "t")) -> Finding:
    """c_i is the mean of the plain gradients over the steps in which a leaf trained.

    x − w_i = η_t Σ_k (∇f_i(w_k) − c_i + c), so c_i⁺ = c_i − c + (x − w_i)/(K η_t) = (1/K) Σ_k ∇f_i(w_k),
    where K counts the steps in which the leaf trained.
    """
    a, b, steps = (1.0, 2.0), ((0.0, 1.0), (3.0, -1.0)), 4
    bed = quadratic_bed({"s": [1.0], "t": [0.5]}, [(a[i], *b[i]) for i in range(2)], (3, 1))
    local = LocalTraining(steps, 10, SGD(0.1, decay=0.5))
    pairs = []
    for name, engine in ENGINES.items():
        states = record_rounds(bed, [(algorithm, 3)], local, [[0, 1]] * 3, engine, steps=steps)
        for number, (sent, state) in enumerate(pairwise(states), 2):
            for client in range(2):
                c_i = state.memories[str(client)]["slots"]["control"]["c"]
                for leaf in corrected:
                    column = "st".index(leaf)
                    # A leaf trained in the steps in which it moved, because a frozen leaf does not move.
                    path = torch.cat([sent.server.shared[leaf], state.models(client)[leaf][:, 0]])
                    trained = path[:-1][path[1:] != path[:-1]]
                    expected = float((a[client] * (trained - b[client][column])).mean())
                    pairs.append(
                        Pair(f"{name}, round {number}, c_{client} of {leaf}", expected, float(c_i[leaf]))
                    )
    return compare_numbers(pairs, TOLERANCE)


def parts_match(algorithm: Algorithm, elsewhere: Algorithm, corrected: Algorithm) -> Finding:
    """`algorithm` trains the parameter s as `elsewhere` does, and t as `corrected` does."""
    bed = quadratic_bed({"s": [1.0], "t": [0.5]}, [(1.0, 0.0, 1.0), (2.0, 3.0, -1.0)], (3, 1))
    local = LocalTraining(4, 10, SGD(0.1, decay=0.5))
    pairs = []
    for name, engine in ENGINES.items():
        both, *parts = (
            record_rounds(bed, [(method, 3)], local, [[0, 1], [0], [0, 1]], engine)
            for method in (algorithm, elsewhere, corrected)
        )
        for leaf, states in zip(("s", "t"), parts, strict=True):
            for number, (expected, actual) in enumerate(zip(states, both, strict=True), 1):
                values = (float(state.server.shared[leaf]) for state in (expected, actual))
                pairs.append(Pair(f"{name}, round {number}, {leaf}", *values))
    return compare_numbers(pairs, TOLERANCE)


def linear(step: Step) -> Tensor:
    """⟨b, w⟩, with the gradient b at every w. A sample is the row (a, b)."""
    w = torch.cat([step.params[k] for k in sorted(step.params)])
    return weighted_mean((step.batch.x[:, 1:] * w).sum(1), step.batch)


def momentum(algorithm: Algorithm) -> Finding:
    """With momentum ρ and a constant gradient b, c_i becomes exactly b.

    The gradient b − c_i + c moves a leaf by itself times η_t (K − ρ(1−ρᴷ)/(1−ρ))/(1−ρ), which is the divisor
    of c_i. Hence c_i⁺ = c_i − c + (b − c_i + c) = b.
    """
    example = ORACLES["fednova"]["momentum_a_i_example"]
    weighted = unit_gradient_distance(
        torch.tensor(float(example["tau"]), dtype=torch.float64), example["rho"]
    )
    pairs = [Pair("steps of the oracle", example["a_i_by_summation"], float(weighted))]
    slopes = ((0.5, -1.0), (-2.0, 3.0))
    bed = quadratic_bed({"s": [1.0], "t": [0.5]}, [(1.0, *b) for b in slopes], (3, 1))._replace(loss=linear)
    local = LocalTraining(4, 10, SGD(0.1, momentum=0.9, decay=0.5))
    for name, engine in ENGINES.items():
        states = record_rounds(bed, [(algorithm, 2)], local, [[0, 1]] * 2, engine)
        for number, state in enumerate(states, 1):
            for client, b in enumerate(slopes):
                c_i = state.memories[str(client)]["slots"]["control"]["c"]
                for leaf, expected in zip(("s", "t"), b, strict=True):
                    where = f"{name}, round {number}, c_{client} of {leaf}"
                    pairs.append(Pair(where, expected, float(c_i[leaf])))
    return compare_numbers(pairs, TOLERANCE)
