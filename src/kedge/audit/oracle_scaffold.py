"""Oracle scaffold of the specification, and what c_i is under a decaying learning rate and momentum."""

from itertools import pairwise

import torch
from torch import Tensor

from kedge.audit.bed import ENGINES, ORACLES, bed_q, local_q, moments, quadratics
from kedge.audit.finding import Finding, Pair, compared
from kedge.audit.oracle_averaging import TOLERANCE
from kedge.core.algorithm import Algorithm, Local
from kedge.core.client import unit_time
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


def mean_gradient(algorithm: Algorithm) -> Finding:
    """c_i is the mean of the plain gradients along the path a leaf trained on, at any learning rate.

    x − w_i = η_t Σ_k (∇f_i(w_k) − c_i + c), so c_i⁺ = c_i − c + (x − w_i)/(K η_t) = (1/K) Σ_k ∇f_i(w_k). It
    holds leaf by leaf with the steps K in which that leaf trained, and in no other round's learning rate.
    """
    a, b, steps = (1.0, 2.0), ((0.0, 1.0), (3.0, -1.0)), 4
    bed = quadratics({"s": [1.0], "t": [0.5]}, [(a[i], *b[i]) for i in range(2)], (3, 1))
    local = Local(steps, 10, SGD(0.1, decay=0.5))
    pairs = []
    for name, engine in ENGINES.items():
        seen = moments(bed, [(algorithm, 3)], local, [[0, 1]] * 3, engine, watch=steps)
        for number, (sent, moment) in enumerate(pairwise(seen), 2):
            for client in range(2):
                c_i = moment.memories[str(client)]["slots"]["control"]["c"]
                for column, leaf in enumerate(("s", "t")):
                    # a frozen leaf does not move: where it moved, it trained
                    path = torch.cat([sent.server.shared[leaf], moment.path(client)[leaf][:, 0]])
                    trained = path[:-1][path[1:] != path[:-1]]
                    want = float((a[client] * (trained - b[client][column])).mean())
                    pairs.append(
                        Pair(f"{name}, round {number}, c_{client} of {leaf}", want, float(c_i[leaf]))
                    )
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
    weighted = unit_time(torch.tensor(float(example["tau"]), dtype=torch.float64), example["rho"])
    pairs = [Pair("steps of the oracle", example["a_i_by_summation"], float(weighted))]
    slopes = ((0.5, -1.0), (-2.0, 3.0))
    bed = quadratics({"s": [1.0], "t": [0.5]}, [(1.0, *b) for b in slopes], (3, 1))._replace(loss=linear)
    local = Local(4, 10, SGD(0.1, momentum=0.9, decay=0.5))
    for name, engine in ENGINES.items():
        seen = moments(bed, [(algorithm, 2)], local, [[0, 1]] * 2, engine)
        for number, moment in enumerate(seen, 1):
            for client, b in enumerate(slopes):
                c_i = moment.memories[str(client)]["slots"]["control"]["c"]
                for leaf, want in zip(("s", "t"), b, strict=True):
                    where = f"{name}, round {number}, c_{client} of {leaf}"
                    pairs.append(Pair(where, want, float(c_i[leaf])))
    return compared(pairs, TOLERANCE)
