"""The point to which each method converges on the quadratics of `quadratics.py`.

FedPVR: its corrected last unit converges to the joint minimizer, the others as in FedAvg with equal weights.
FedBABU: the head keeps its start, the body converges as in FedAvg. FedTR, without its feature term (the
quadratics have no features): under its accumulate rule a fixed point has w_i = w, a_i (w − b_i) + 2λ d_i = 0
and Σ n_i d_i = 0, which is the joint minimizer by size. Under its gradient rule, δ = w_i − w and d_i follow

    δ ← δ − η (a_i (w + δ − b_i) + 2λ (d_i + δ)),   d_i ← d_i − 2ρ (d_i + δ),   δ = 0 at the start of a round.

A fixed point is a w for which a round leaves every d_i unchanged and Σ n_i (δ + d_i) = 0: linear equations.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor

from kedge.algorithms.fedtr import ReleasedDrift
from kedge.audit.check import Check
from kedge.audit.finding import Finding
from kedge.audit.references.quadratics import (
    CENTERS,
    CURVATURES,
    LOCAL,
    SIZES,
    START,
    compare_limit,
    fedprox_limit,
    final_model,
    joint_minimizer,
    misses_minimizer,
    reaches_minimizer,
    stops_before_minimizer,
)
from kedge.core.algorithm import Algorithm, LocalTraining
from kedge.core.optimizers import SGD

STEPS = (5, 5, 5)  # local steps of each unit in a round
STEPS_UNDER_SCHEDULE = {"fedbug": (5, 4, 3), "top-down": (3, 4, 5)}  # ⌈3k/4⌉ units are open in step k
NO_FEATURES = "its term is about features, and the quadratics have none: it would be FedAvg"
KEPT_PART = "the quadratics read shared leaves only, and its clients keep a part of the model"
NO_LIMIT: dict[str, str] = {  # methods without this check, and the reasons
    "moon": NO_FEATURES,
    "moon(projection)": NO_FEATURES,
    "fedtr(features)": NO_FEATURES,
    "fedtr": "without features, which the quadratics do not have, it is fedtr(drift)",
    "fedper": KEPT_PART,
    "lg-fedavg": KEPT_PART,
    "fedrep": KEPT_PART,
    "fedrod": "it has its own loss instead of the quadratic",
}
# With this learning rate, strength and drift rate, FedTR's gradient rule converges within the rounds.
FASTER = LocalTraining(LOCAL.epochs, LOCAL.batch, SGD(0.1))
STRENGTH, DRIFT_RATE = 0.2, 5.0


def fedpvr(algorithm: Algorithm) -> Finding:
    """The last unit converges to the joint minimizer, the others miss it as in FedAvg."""
    limit = torch.cat([fedprox_limit(0.0, STEPS, by_size=False)[:2], joint_minimizer(False)[2:]])
    return compare_limit(final_model(algorithm), limit, joint_minimizer(False))


def fedbabu(algorithm: Algorithm) -> Finding:
    """The head keeps its start, the body converges as in FedAvg."""
    limit = torch.cat([fedprox_limit(0.0, STEPS)[:2], torch.tensor([START], dtype=torch.float64)])
    return compare_limit(final_model(algorithm), limit, joint_minimizer(True))


def without_features(algorithm: Algorithm, strength: float) -> Algorithm:
    """FedTR with its drift term alone."""
    drifts = [c for c in algorithm.corrections if isinstance(c, ReleasedDrift)]
    corrections = tuple(replace(drift, strength=strength, rate=DRIFT_RATE) for drift in drifts)
    return replace(algorithm, corrections=corrections)


def fedtr_accumulate(algorithm: Algorithm) -> Finding:
    """FedTR with the accumulate rule converges to the joint minimizer by size."""
    return reaches_minimizer(without_features(algorithm, 1.0), by_size=True)


def fedtr_gradient(algorithm: Algorithm) -> Finding:
    """FedTR with the gradient rule converges to the solution of the linear equations."""
    limit = torch.stack([fedtr_gradient_limit([b[unit] for b in CENTERS]) for unit in range(3)])
    model = final_model(without_features(algorithm, STRENGTH), FASTER)
    return compare_limit(model, limit, joint_minimizer(True))


def fedtr_gradient_limit(centers: Sequence[float]) -> Tensor:
    """The limit of one unit, in which Σ n_i (δ + d_i) = slope · w + offset is 0.

    A round multiplies the vector (δ, d, w, 1) by the K-th power of a step's matrix.
    """
    eta, slope, offset = FASTER.optimizer.rate(0), torch.zeros(()).double(), torch.zeros(()).double()
    for a, b, n in zip(CURVATURES, centers, SIZES, strict=True):
        step_delta, step_d = torch.eye(4, dtype=torch.float64), torch.eye(4, dtype=torch.float64)
        row = [1 - eta * (a + 2 * STRENGTH), -2 * eta * STRENGTH, -eta * a, eta * a * b]
        step_delta[0] = torch.tensor(row, dtype=torch.float64)
        rate = 2 * STRENGTH * DRIFT_RATE
        step_d[1] = torch.tensor([-rate, 1 - rate, 0.0, 0.0], dtype=torch.float64)
        round_matrix = torch.linalg.matrix_power(step_d @ step_delta, FASTER.epochs)
        # δ and d after a round as sums of d, w and 1, because δ = 0 at its start.
        (_, delta_d, delta_w, delta_1), (_, d_d, d_w, d_1), *_ = round_matrix
        # The d that a round leaves unchanged is per_w · w + constant.
        per_w, constant = d_w / (1 - d_d), d_1 / (1 - d_d)
        slope = slope + n * ((1 + delta_d) * per_w + delta_w)
        offset = offset + n * ((1 + delta_d) * constant + delta_1)
    return -offset / slope


def limit_checks(method: str, algorithm: Algorithm) -> list[Check]:
    """The check of the point to which `method` converges; empty for the methods of `NO_LIMIT`."""
    if method in NO_LIMIT:
        return []
    name, run = limit_check(method, algorithm)
    return [Check(method, name, "quadratic", run)]


def limit_check(method: str, algorithm: Algorithm) -> tuple[str, Callable[[], Finding]]:
    """Name and function of the check."""
    slot = algorithm.corrections[0].name if algorithm.corrections else ""
    steps = STEPS_UNDER_SCHEDULE.get(method.partition("+")[0], STEPS)
    special: dict[str, Callable[[Algorithm], Finding]] = {
        "feddyn-no-h": stops_before_minimizer,
        "feddyn-no-reg": partial(misses_minimizer, mu=0.0, steps=steps, by_size=False),
        "fedpvr": fedpvr,
        "fedbabu": fedbabu,
        "vanilla+fedbabu": fedbabu,
        "fedtr(drift)": fedtr_gradient,
    }
    if method in special:
        return "misses the minimizer", partial(special[method], algorithm)
    if method == "fedtr(proof)":
        return "reaches the minimizer", partial(fedtr_accumulate, algorithm)
    if slot in ("dynamic", "control", "drift"):
        return "reaches the minimizer", partial(reaches_minimizer, algorithm, method == "feddyn(data)")
    mu = 0.1 if slot == "proximal" else 0.0
    return "misses the minimizer", partial(misses_minimizer, algorithm, mu, steps)
