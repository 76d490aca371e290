"""Oracles fedavgm, fedadam, fedexp and fednova of the specification: rules of the server.

The kernel computes the deltas: a client with the loss ⟨b, w⟩ moves by −b in one step with learning rate 1.
"""

from collections.abc import Sequence
from dataclasses import replace
from itertools import accumulate

from torch import Tensor

from kedge.audit.bed import quadratic_bed
from kedge.audit.finding import Finding, Pair, compare_numbers
from kedge.audit.oracles.averaging import TOLERANCE
from kedge.audit.oracles.scaffold import linear
from kedge.audit.recorded_run import RoundState, record_rounds
from kedge.audit.specification import ORACLES
from kedge.audit.training import ENGINES
from kedge.core.algorithm import Algorithm, LocalTraining
from kedge.core.optimizers import SGD
from kedge.core.tree import Leaves


def run_with_deltas(
    algorithm: Algorithm,
    start: Sequence[float],
    deltas: Sequence[Sequence[float]],
    cohorts: Sequence[Sequence[int]],
) -> dict[str, list[RoundState]]:
    """The states after rounds in which client i moves by `deltas[i]`, by engine."""
    rows = [(1.0, *(-d for d in delta)) for delta in deltas]
    bed = quadratic_bed({"w": start}, rows, [1] * len(rows))._replace(loss=linear)
    stages, local = [(algorithm, len(cohorts))], LocalTraining(1, 10, SGD(1.0))
    return {name: record_rounds(bed, stages, local, cohorts, engine, 1) for name, engine in ENGINES.items()}


def two_mean_updates(algorithm: Algorithm, oracle: str, inputs: str, expected: str) -> Finding:
    """The server's model after two mean updates, against the value `expected` of the oracle."""
    given = ORACLES[oracle]["inputs"]
    states = run_with_deltas(algorithm, [given["w0"]], [[d] for d in given[inputs]], [[0], [1]])
    expected_values = ORACLES[oracle]["expected"][expected]
    return compare_numbers(
        [
            Pair(f"{name}, round {number}", target, float(state.server.shared["w"]))
            for name, rounds in states.items()
            for number, (target, state) in enumerate(zip(expected_values, rounds, strict=True), 1)
        ],
        TOLERANCE,
    )


def extrapolated(algorithm: Algorithm, key: str) -> Finding:
    """One round of three clients: w = η_g Δ̄ by the rule `key`. The view is halfway there."""
    given, expected = ORACLES["fedexp"]["inputs"], ORACLES["fedexp"]["expected"]
    deltas = given["deltas (w_i-w)"]
    mean = [sum(column) / len(deltas) for column in zip(*deltas, strict=True)]
    pairs = []
    for name, (state,) in run_with_deltas(algorithm, [0.0, 0.0], deltas, [[0, 1, 2]]).items():
        (correction, *_) = algorithm.corrections
        shared = state.server.shared
        view = correction.views(shared, state.server.slots[correction.name])["last-two"]["w"]
        for axis, d in enumerate(mean):
            target = expected[key] * d
            pairs.append(Pair(f"{name}, w[{axis}]", target, float(shared["w"][axis])))
            pairs.append(Pair(f"{name}, last two, w[{axis}]", target / 2, float(view[axis])))
    return compare_numbers(pairs, TOLERANCE)


def one_participant(algorithm: Algorithm) -> Finding:
    """With one participant it is FedAvg, and the view is the mean of the last two models."""
    deltas = ORACLES["fedexp"]["inputs"]["deltas (w_i-w)"]
    path = list(accumulate(delta[0] for delta in deltas))
    pairs = []
    for name, states in run_with_deltas(algorithm, [0.0, 0.0], deltas, [[0], [1], [2]]).items():
        for number, (before, after, state) in enumerate(zip([0.0, *path], path, states, strict=False), 1):
            (correction, *_) = algorithm.corrections
            shared = state.server.shared
            view = correction.views(shared, state.server.slots[correction.name])["last-two"]["w"]
            pairs.append(Pair(f"{name}, round {number}", after, float(shared["w"][0])))
            pairs.append(Pair(f"{name}, round {number}, last two", (before + after) / 2, float(view[0])))
    return compare_numbers(pairs, TOLERANCE)


def inverse_size(facts: Leaves) -> Tensor:
    """Weight 1/n_i, because the oracle's client with the larger weight takes fewer steps."""
    return 1 / facts["examples"]


def unequal_work(algorithm: Algorithm, key: str) -> Finding:
    """Bed Q with 2 steps of client 0 and 4 steps of client 1, and weights 0.75 and 0.25."""
    q, expected = ORACLES["test_bed_Q"], ORACLES["fednova"]["expected"]
    bed = quadratic_bed({"w": [q["w0"]]}, list(zip(q["a"], q["b"], strict=True)), (10, 30))
    weighted = replace(algorithm, weight=inverse_size)
    pairs = []
    for name, engine in ENGINES.items():
        (state,) = record_rounds(bed, [(weighted, 1)], LocalTraining(2, 15, SGD(q["lr"])), [[0, 1]], engine)
        for client, value in enumerate(expected["client_models"]):
            pairs.append(Pair(f"{name}, client {client}", value, float(state.models(client)["w"][-1])))
        pairs.append(Pair(f"{name}, server", expected[key], float(state.server.shared["w"])))
    return compare_numbers(pairs, TOLERANCE)


def momentum_steps(algorithm: Algorithm) -> Finding:
    """Constant gradients b_i with momentum ρ and 2 and 4 steps: w moves by −η (Σ p_i a_i)(Σ p_i b_i).

    With the momentum buffer m ← ρm + b, w moves by −η b Σ_{j≤k} (1 + ρ + … + ρ^{j−1}) = −η b a_i in k steps,
    so that d_i = −η b_i.
    """
    slopes, steps, shares, rho, lr = (0.5, -2.0), (2, 4), (0.25, 0.75), 0.9, 0.1
    weights = [sum(sum(rho**power for power in range(j)) for j in range(1, k + 1)) for k in steps]
    bed = quadratic_bed({"w": [1.0]}, [(1.0, b) for b in slopes], (10, 30))._replace(loss=linear)
    local = LocalTraining(2, 15, SGD(lr, momentum=rho))
    effective = sum(p * a for p, a in zip(shares, weights, strict=True))
    expected = 1.0 - lr * effective * sum(p * b for p, b in zip(shares, slopes, strict=True))
    pairs = []
    for name, engine in ENGINES.items():
        (state,) = record_rounds(bed, [(algorithm, 1)], local, [[0, 1]], engine)
        pairs.append(Pair(f"{name}, server", expected, float(state.server.shared["w"])))
    return compare_numbers(pairs, TOLERANCE)
