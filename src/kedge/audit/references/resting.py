"""Where each method comes to rest on the unequal quadratics of `quadratics.py`, or why that says nothing.

FedPVR: its corrected unit at the joint minimiser, the others where FedAvg with equal weights rests. FedBABU:
the head where it began, the base where FedAvg rests. FedTR, features left out (the bed has none): under its
accumulate rule it rests where w_i = w and a_i (w − b_i) + 2λ d_i = 0, and Σ n_i d_i = 0 there, hence at the
joint minimiser by size. Under its gradient rule δ = w_i − w and d_i follow

    δ ← δ − η (a_i (w + δ − b_i) + 2λ (d_i + δ)),   d_i ← d_i − 2ρ (d_i + δ),   δ = 0 at the start of a round;

it rests at the w for which every d_i comes back to itself and Σ n_i (δ + d_i) = 0: linear equations.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor

from kedge.algorithms.fedtr import ReleasedDrift
from kedge.audit.finding import Check, Finding
from kedge.audit.references.quadratics import (
    CENTERS,
    CURVATURES,
    LOCAL,
    SIZES,
    START,
    ended,
    held_back,
    minimiser,
    misses,
    reaches,
    rest,
    rested,
)
from kedge.core.algorithm import Algorithm, LocalTraining
from kedge.core.optimizers import SGD

UNFREEZING = {"fedbug": (5, 4, 3), "top-down": (3, 4, 5)}  # steps of the units; ⌈3k/4⌉ are open in step k
FEATURES = "what it adds is about features, of which the quadratics have none: it would be FedAvg"
OWN_PART = "the quadratics read shared leaves only, and it shares a part"
WITHOUT: dict[str, str] = {  # methods that the quadratics say nothing about
    "moon": FEATURES,
    "moon(projection)": FEATURES,
    "fedtr(features)": FEATURES,
    "fedtr": "without features, of which the quadratics have none, it is fedtr(drift)",
    "fedper": OWN_PART,
    "lg-fedavg": OWN_PART,
    "fedrep": OWN_PART,
    "fedrod": "its data term is its own and not the quadratic",
}
BRISK = LocalTraining(LOCAL.epochs, LOCAL.batch, SGD(0.1))  # FedTR's gradient rule holds updates back
STRENGTH, RATE = 0.2, 1.0  # and so comes to rest within the audit's rounds


def partly_corrected(algorithm: Algorithm) -> Finding:
    """FedPVR: the last unit reaches the joint minimiser, the others miss it as FedAvg does."""
    where = torch.cat([rest(0.0, (5, 5, 5), by_size=False)[:2], minimiser(False)[2:]])
    return rested(ended(algorithm), where, minimiser(False))


def headless(algorithm: Algorithm) -> Finding:
    """FedBABU: the head keeps its start, the base rests where FedAvg does."""
    where = torch.cat([rest(0.0, (5, 5, 5))[:2], torch.tensor([START], dtype=torch.float64)])
    return rested(ended(algorithm), where, minimiser(True))


def drifting(algorithm: Algorithm, strength: float) -> Algorithm:
    """FedTR without its features."""
    own = [c for c in algorithm.corrections if isinstance(c, ReleasedDrift)]
    firm = tuple(replace(c, strength=strength, rate=RATE) for c in own)
    return replace(algorithm, corrections=firm)


def accumulated(algorithm: Algorithm) -> Finding:
    """FedTR by its accumulate rule: at the joint minimiser by size."""
    return reaches(drifting(algorithm, 1.0), by_size=True)


def released(algorithm: Algorithm) -> Finding:
    """FedTR by its gradient rule: where the linear equations say."""
    where = torch.stack([released_rest([b[unit] for b in CENTERS]) for unit in range(3)])
    return rested(ended(drifting(algorithm, STRENGTH), BRISK), where, minimiser(True))


def released_rest(centers: Sequence[float]) -> Tensor:
    """The w of one unit: a round takes (δ, d, w, 1) to its K-fold product with the two steps."""
    eta, slope, offset = BRISK.optimizer.rate(0), torch.zeros(()).double(), torch.zeros(()).double()
    for a, b, n in zip(CURVATURES, centers, SIZES, strict=True):
        move, learn = torch.eye(4, dtype=torch.float64), torch.eye(4, dtype=torch.float64)
        pull = [1 - eta * (a + 2 * STRENGTH), -2 * eta * STRENGTH, -eta * a, eta * a * b]
        move[0] = torch.tensor(pull, dtype=torch.float64)
        learn[1] = torch.tensor([-2 * RATE, 1 - 2 * RATE, 0.0, 0.0], dtype=torch.float64)
        (_, to_d, to_w, to_1), (_, back, d_w, d_1), *_ = torch.linalg.matrix_power(learn @ move, BRISK.epochs)
        per_w, constant = d_w / (1 - back), d_1 / (1 - back)  # the d that comes back to itself
        slope, offset = slope + n * ((1 + to_d) * per_w + to_w), offset + n * ((1 + to_d) * constant + to_1)
    return -offset / slope


def resting(method: str, algorithm: Algorithm) -> list[Check]:
    """The check of where a method comes to rest, if there is one."""
    if method in WITHOUT:
        return []
    name, look = expected(method, algorithm)
    return [Check(method, name, "quadratic", look)]


def expected(method: str, algorithm: Algorithm) -> tuple[str, Callable[[], Finding]]:
    """Whether it reaches the joint minimiser, and the check of it."""
    slot = algorithm.corrections[0].name if algorithm.corrections else ""
    steps = UNFREEZING.get(method.partition("+")[0], (5, 5, 5))
    special: dict[str, Callable[[Algorithm], Finding]] = {
        "feddyn-no-h": held_back,
        "feddyn-no-reg": partial(misses, mu=0.0, steps=steps, by_size=False),
        "fedpvr": partly_corrected,
        "fedbabu": headless,
        "vanilla+fedbabu": headless,
        "fedtr(drift)": released,
    }
    if method in special:
        return "misses the minimiser", partial(special[method], algorithm)
    if method == "fedtr(proof)":
        return "reaches the minimiser", partial(accumulated, algorithm)
    if slot in ("dynamic", "control", "drift"):
        return "reaches the minimiser", partial(reaches, algorithm, method == "feddyn(data)")
    mu = 0.1 if slot == "proximal" else 0.0
    return "misses the minimiser", partial(misses, algorithm, mu, steps)
