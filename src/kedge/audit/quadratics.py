"""Unequal quadratics with a known joint minimiser: who reaches it, and who must miss it.

With f_i(w) = a_i/2 ‖w − b_i‖², Σ ω_i f_i is least at Σ ω_i a_i b_i / Σ ω_i a_i. With several local steps FedAvg,
FedProx and FedBug over them stall elsewhere. SCAFFOLD and FedDyn stand still only where Σ ∇f_i = 0, and so
under FedBug too; FedDyn with α_i ∝ 1/n_i only where Σ n_i ∇f_i = 0: −α_i u_i = ∇f_i and Σ u_i = 0.
"""

from dataclasses import replace

import torch
from torch import Tensor

from kedge.algorithms.feddyn import DynamicRegularizer
from kedge.audit.bed import Bed, quadratics
from kedge.audit.finding import Finding
from kedge.core.algorithm import Algorithm, Local, Stage
from kedge.core.correction import Correction
from kedge.core.optimizers import SGD
from kedge.engines.stacked import Stacked
from kedge.running.runner import Task, run

CURVATURES = (1.0, 2.0, 5.0)
CENTERS = ((0.0, 2.0, -1.0), (3.0, -1.0, 0.5), (-2.0, 1.0, 4.0))
SIZES = (6, 2, 1)
ALPHA = 2.0  # FedDyn: with a weak regulariser it comes, but slowly
LOCAL = Local(5, 1000, SGD(0.05))
ROUNDS = 120
REACHED, MISSED = 1e-9, 1e-2


def bed() -> Bed:
    """Three clients, three units of one parameter each."""
    rows = [(a, *b) for a, b in zip(CURVATURES, CENTERS, strict=True)]
    return quadratics({"u": [1.0], "v": [1.0], "w": [1.0]}, rows, SIZES)


def minimiser(by_size: bool) -> Tensor:
    """The joint minimiser, clients weighted equally or by size."""
    weight = torch.tensor(CURVATURES, dtype=torch.float64)
    if by_size:
        weight = weight * torch.tensor(SIZES, dtype=torch.float64)
    return weight @ torch.tensor(CENTERS, dtype=torch.float64) / weight.sum()


def firm(correction: Correction) -> Correction:
    """FedDyn's regulariser with this bed's α; other corrections as they are."""
    return replace(correction, alpha=ALPHA) if isinstance(correction, DynamicRegularizer) else correction


def distance(algorithm: Algorithm, by_size: bool, rounds: int = ROUNDS) -> float:
    """How far from the joint minimiser a method ends; infinite where it diverges."""
    model, data, loss = bed()
    suited = replace(algorithm, loss=loss, corrections=tuple(firm(c) for c in algorithm.corrections))
    task = Task((Stage(suited, rounds, LOCAL),), model, data)
    shared = run(task, Stacked(model, data)).server.shared
    return float((torch.cat([shared[k] for k in sorted(shared)]) - minimiser(by_size)).norm())


def reaches(algorithm: Algorithm, by_size: bool = False) -> Finding:
    """It comes to the joint minimiser."""
    far = distance(algorithm, by_size)
    return Finding(
        far <= REACHED,
        far,
        f"{far:.1e} from the joint minimiser after {ROUNDS} rounds; at most {REACHED:.0e}",
    )


def misses(algorithm: Algorithm, by_size: bool) -> Finding:
    """It stalls elsewhere, as it must: the same distance after half of the rounds."""
    far, before = distance(algorithm, by_size), distance(algorithm, by_size, ROUNDS // 2)
    stalled = abs(far - before) <= 1e-6
    detail = f"stalls {far:.3f} from the joint minimiser, as it must; at least {MISSED:g}"
    return Finding(far >= MISSED and stalled, None, detail)
