"""Oracles scaffold and fedpvr of the specification; c_i under a decaying learning rate and momentum."""

from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import Tensor

from kedge.audit.bed import ORACLES, bed_q, local_q, moments, quadratics
from kedge.audit.finding import Finding, Pair, compared
from kedge.audit.oracles.averaging import TOLERANCE
from kedge.audit.problems import ENGINES
from kedge.core.algorithm import Algorithm, LocalTraining
from kedge.core.client import unit_gradient_distance
from kedge.core.correction import Step
from kedge.core.losses import weighted_mean
from kedge.core.optimizers import SGD


def scaffold(algorithm: Algorithm, case: str) -> Finding:
    """Client models, every c_i, c and x after each round of a case."""
    rounds = ORACLES["scaffold"]["expected"][case]
    cohorts = [one["participants"] for one in rounds]
    pairs = []
    for name, engine in ENGINES.items():
        seen = moments(bed_q(), [(algorithm, len(rounds))], local_q(), cohorts, engine)
        for number, (want, moment) in enumerate(zip(rounds, seen, strict=True), 1):
            where = f"{name}, round {number}"
            for client, value in want["client_models"].items():
                pairs.append(
                    Pair(f"{where}, client {client}", value, float(moment.path(int(client))["w"][-1]))
                )
            for client, value in enumerate(want["c_i"]):
                row = moment.memories.get(str(client))
                c_i = float(row["slots"]["control"]["c"]["w"]) if row else 0.0
                pairs.append(Pair(f"{where}, c_{client}", value, c_i))
            pairs.append(Pair(f"{where}, c", want["c"], float(moment.server.slots["control"]["c"]["w"])))
            pairs.append(Pair(f"{where}, x", want["x_next"], float(moment.server.shared["w"])))
    return compared(pairs, TOLERANCE)


def fedpvr(algorithm: Algorithm) -> Finding:
    """Two independent parameters, body s and head p, both with bed Q's objectives; only p is corrected."""
    q, rounds = ORACLES["test_bed_Q"], ORACLES["fedpvr"]["expected"]
    rows = [(a, b, b) for a, b in zip(q["a"], q["b"], strict=True)]
    bed = quadratics({"s": [q["w0"]], "p": [q["w0"]]}, rows, q["n_samples"])
    pairs = []
    for name, engine in ENGINES.items():
        seen = moments(bed, [(algorithm, len(rounds))], local_q(), [[0, 1]] * len(rounds), engine)
        for number, (want, moment) in enumerate(zip(rounds, seen, strict=True), 1):
            where, c = f"{name}, round {number}", moment.server.slots["control"]["c"]
            for leaf, part in (("s", "body"), ("p", "head")):
                got = float(moment.server.shared[leaf])
                pairs.append(Pair(f"{where}, {part}", want[f"{part}_server"], got))
                for client, value in enumerate(want[f"{part}_clients"]):
                    got = float(moment.path(client)[leaf][-1])
                    pairs.append(Pair(f"{where}, {part} of client {client}", value, got))
            for client, value in enumerate(want["c_i_head"]):
                c_i = moment.memories[str(client)]["slots"]["control"]["c"]
                pairs.append(Pair(f"{where}, c_{client}", value, float(c_i["p"])))
            pairs.append(Pair(f"{where}, c", want["c_head"], float(c["p"])))
    return compared(pairs, TOLERANCE)


def mean_gradient(algorithm: Algorithm, corrected: Sequence[str] = ("s", "t")) -> Finding:
    """c_i is the mean of the plain gradients along the path a leaf trained on, at any learning rate.

    x − w_i = η_t Σ_k (∇f_i(w_k) − c_i + c), so c_i⁺ = c_i − c + (x − w_i)/(K η_t) = (1/K) Σ_k ∇f_i(w_k). It
    holds leaf by leaf with the steps K in which that leaf trained, and in no other round's learning rate.
    """
    a, b, steps = (1.0, 2.0), ((0.0, 1.0), (3.0, -1.0)), 4
    bed = quadratics({"s": [1.0], "t": [0.5]}, [(a[i], *b[i]) for i in range(2)], (3, 1))
    local = LocalTraining(steps, 10, SGD(0.1, decay=0.5))
    pairs = []
    for name, engine in ENGINES.items():
        seen = moments(bed, [(algorithm, 3)], local, [[0, 1]] * 3, engine, watch=steps)
        for number, (sent, moment) in enumerate(pairwise(seen), 2):
            for client in range(2):
                c_i = moment.memories[str(client)]["slots"]["control"]["c"]
                for leaf in corrected:
                    column = "st".index(leaf)
                    # a frozen leaf does not move: where it moved, it trained
                    path = torch.cat([sent.server.shared[leaf], moment.path(client)[leaf][:, 0]])
                    trained = path[:-1][path[1:] != path[:-1]]
                    want = float((a[client] * (trained - b[client][column])).mean())
                    pairs.append(
                        Pair(f"{name}, round {number}, c_{client} of {leaf}", want, float(c_i[leaf]))
                    )
    return compared(pairs, TOLERANCE)


def parts(algorithm: Algorithm, elsewhere: Algorithm, corrected: Algorithm) -> Finding:
    """On independent parameters s and t, FedPVR's t takes SCAFFOLD's path and its s that of FedAvg."""
    bed = quadratics({"s": [1.0], "t": [0.5]}, [(1.0, 0.0, 1.0), (2.0, 3.0, -1.0)], (3, 1))
    local = LocalTraining(4, 10, SGD(0.1, decay=0.5))
    pairs = []
    for name, engine in ENGINES.items():
        own, *others = (
            moments(bed, [(one, 3)], local, [[0, 1], [0], [0, 1]], engine)
            for one in (algorithm, elsewhere, corrected)
        )
        for leaf, seen in zip(("s", "t"), others, strict=True):
            for number, (want, got) in enumerate(zip(seen, own, strict=True), 1):
                values = (float(one.server.shared[leaf]) for one in (want, got))
                pairs.append(Pair(f"{name}, round {number}, {leaf}", *values))
    return compared(pairs, TOLERANCE)


def linear(step: Step) -> Tensor:
    """⟨b, w⟩, where a sample is the row (a, b): the gradient is b everywhere."""
    w = torch.cat([step.params[k] for k in sorted(step.params)])
    return weighted_mean((step.batch.x[:, 1:] * w).sum(1), step.batch)


def momentum(algorithm: Algorithm) -> Finding:
    """With momentum ρ the divisor is η_t (K − ρ(1−ρᴷ)/(1−ρ))/(1−ρ): a constant gradient is found exactly.

    A constant b − c_i + c moves a leaf by that divisor times it, hence c_i⁺ = c_i − c + (b − c_i + c) = b.
    """
    example = ORACLES["fednova"]["momentum_a_i_example"]
    weighted = unit_gradient_distance(
        torch.tensor(float(example["tau"]), dtype=torch.float64), example["rho"]
    )
    pairs = [Pair("steps of the oracle", example["a_i_by_summation"], float(weighted))]
    slopes = ((0.5, -1.0), (-2.0, 3.0))
    bed = quadratics({"s": [1.0], "t": [0.5]}, [(1.0, *b) for b in slopes], (3, 1))._replace(loss=linear)
    local = LocalTraining(4, 10, SGD(0.1, momentum=0.9, decay=0.5))
    for name, engine in ENGINES.items():
        seen = moments(bed, [(algorithm, 2)], local, [[0, 1]] * 2, engine)
        for number, moment in enumerate(seen, 1):
            for client, b in enumerate(slopes):
                c_i = moment.memories[str(client)]["slots"]["control"]["c"]
                for leaf, want in zip(("s", "t"), b, strict=True):
                    where = f"{name}, round {number}, c_{client} of {leaf}"
                    pairs.append(Pair(where, want, float(c_i[leaf])))
    return compared(pairs, TOLERANCE)
