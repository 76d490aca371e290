"""Oracles fedavgm, fedadam, fedexp and fednova of the specification: rules of the server.

Deltas are put in through the kernel: a client of loss ⟨b, w⟩ that takes one step of rate 1 moves by −b.
"""

from collections.abc import Sequence
from dataclasses import replace
from itertools import accumulate

from torch import Tensor

from kedge.audit.bed import ORACLES, Moment, moments, quadratics
from kedge.audit.finding import Finding, Pair, compared
from kedge.audit.oracles.averaging import TOLERANCE
from kedge.audit.oracles.scaffold import linear
from kedge.audit.problems import ENGINES
from kedge.core.algorithm import Algorithm, LocalTraining
from kedge.core.optimizers import SGD
from kedge.core.tree import Leaves


def pushed(
    algorithm: Algorithm,
    start: Sequence[float],
    deltas: Sequence[Sequence[float]],
    cohorts: Sequence[Sequence[int]],
) -> dict[str, list[Moment]]:
    """Rounds in which client i moves by deltas[i], on every engine."""
    rows = [(1.0, *(-d for d in delta)) for delta in deltas]
    bed = quadratics({"w": start}, rows, [1] * len(rows))._replace(loss=linear)
    stages, local = [(algorithm, len(cohorts))], LocalTraining(1, 10, SGD(1.0))
    return {name: moments(bed, stages, local, cohorts, engine, 1) for name, engine in ENGINES.items()}


def two_rounds(algorithm: Algorithm, oracle: str, inputs: str, expected: str) -> Finding:
    """The server's model after two mean updates, under this key of the oracle."""
    given = ORACLES[oracle]["inputs"]
    seen = pushed(algorithm, [given["w0"]], [[d] for d in given[inputs]], [[0], [1]])
    wanted = ORACLES[oracle]["expected"][expected]
    return compared(
        [
            Pair(f"{name}, round {number}", want, float(moment.server.shared["w"]))
            for name, moments in seen.items()
            for number, (want, moment) in enumerate(zip(wanted, moments, strict=True), 1)
        ],
        TOLERANCE,
    )


def extrapolated(algorithm: Algorithm, key: str) -> Finding:
    """One round of three clients: w = η_g Δ̄ by the rule of this key, and the view halfway there."""
    given, expected = ORACLES["fedexp"]["inputs"], ORACLES["fedexp"]["expected"]
    deltas = given["deltas (w_i-w)"]
    mean = [sum(column) / len(deltas) for column in zip(*deltas, strict=True)]
    pairs = []
    for name, (moment,) in pushed(algorithm, [0.0, 0.0], deltas, [[0, 1, 2]]).items():
        (correction, *_) = algorithm.corrections
        shared = moment.server.shared
        view = correction.views(shared, moment.server.slots[correction.name])["last-two"]["w"]
        for axis, d in enumerate(mean):
            want = expected[key] * d
            pairs.append(Pair(f"{name}, w[{axis}]", want, float(shared["w"][axis])))
            pairs.append(Pair(f"{name}, last two, w[{axis}]", want / 2, float(view[axis])))
    return compared(pairs, TOLERANCE)


def alone(algorithm: Algorithm) -> Finding:
    """One participant: FedAvg, and the view is the mean of the last two iterates."""
    deltas = ORACLES["fedexp"]["inputs"]["deltas (w_i-w)"]
    path = list(accumulate(delta[0] for delta in deltas))
    pairs = []
    for name, seen in pushed(algorithm, [0.0, 0.0], deltas, [[0], [1], [2]]).items():
        for number, (before, after, moment) in enumerate(zip([0.0, *path], path, seen, strict=False), 1):
            (correction, *_) = algorithm.corrections
            shared = moment.server.shared
            view = correction.views(shared, moment.server.slots[correction.name])["last-two"]["w"]
            pairs.append(Pair(f"{name}, round {number}", after, float(shared["w"][0])))
            pairs.append(Pair(f"{name}, round {number}, last two", (before + after) / 2, float(view[0])))
    return compared(pairs, TOLERANCE)


def inverse(facts: Leaves) -> Tensor:
    """Weight 1/n_i: the oracle's heavier client takes fewer steps."""
    return 1 / facts["examples"]


def unequal_work(algorithm: Algorithm, key: str) -> Finding:
    """Bed Q where client 0 takes 2 steps and client 1 takes 4, weights 0.75 and 0.25."""
    q, expected = ORACLES["test_bed_Q"], ORACLES["fednova"]["expected"]
    bed = quadratics({"w": [q["w0"]]}, list(zip(q["a"], q["b"], strict=True)), (10, 30))
    weighted = replace(algorithm, weight=inverse)
    pairs = []
    for name, engine in ENGINES.items():
        (moment,) = moments(bed, [(weighted, 1)], LocalTraining(2, 15, SGD(q["lr"])), [[0, 1]], engine)
        for client, value in enumerate(expected["client_models"]):
            pairs.append(Pair(f"{name}, client {client}", value, float(moment.path(client)["w"][-1])))
        pairs.append(Pair(f"{name}, server", expected[key], float(moment.server.shared["w"])))
    return compared(pairs, TOLERANCE)


def momentum_steps(algorithm: Algorithm) -> Finding:
    """Constant gradients b_i, momentum ρ, 2 and 4 steps: w moves by −η (Σ p_i a_i)(Σ p_i b_i).

    A buffer m ← ρm + b has moved w by −η b Σ_{j≤k} (1 + ρ + … + ρ^{j−1}) = −η b a_i after k steps, so that
    d_i = −η b_i.
    """
    slopes, steps, shares, rho, lr = (0.5, -2.0), (2, 4), (0.25, 0.75), 0.9, 0.1
    weights = [sum(sum(rho**power for power in range(j)) for j in range(1, k + 1)) for k in steps]
    bed = quadratics({"w": [1.0]}, [(1.0, b) for b in slopes], (10, 30))._replace(loss=linear)
    local = LocalTraining(2, 15, SGD(lr, momentum=rho))
    effective = sum(p * a for p, a in zip(shares, weights, strict=True))
    want = 1.0 - lr * effective * sum(p * b for p, b in zip(shares, slopes, strict=True))
    pairs = []
    for name, engine in ENGINES.items():
        (moment,) = moments(bed, [(algorithm, 1)], local, [[0, 1]], engine)
        pairs.append(Pair(f"{name}, server", want, float(moment.server.shared["w"])))
    return compared(pairs, TOLERANCE)
