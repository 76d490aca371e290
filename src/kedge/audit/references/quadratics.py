"""Unequal quadratics with a known joint minimiser: who reaches it, and who must miss it.

With f_i(w) = a_i/2 ‖w − b_i‖², Σ ω_i f_i is least at Σ ω_i a_i b_i / Σ ω_i a_i. SCAFFOLD and FedDyn stand
still only where Σ ∇f_i = 0, under FedBug too; FedDyn with α_i ∝ 1/n_i only where Σ n_i ∇f_i = 0, because
−α_i u_i = ∇f_i and Σ u_i = 0. K local steps of FedProx (of FedAvg, μ = 0) move client i by r_i·(b_i − w),

    r_i = (1 − (1 − η(a_i + μ))ᴷ) · a_i/(a_i + μ),

so it rests at Σ n_i r_i b_i / Σ n_i r_i, elsewhere unless K = 1; under FedBug K is a unit's own. FedDyn
without the regulariser rests where FedAvg with equal weights does, FedDC where Σ ∇f_i = 0.
FedDyn without h rests where all w_i = θ, so that ∇f_i(θ) = −α u_i; the mean of u_i is θ − θ⁰, and hence
θ = (Σ a_i b_i + mα θ⁰) / (Σ a_i + mα): the start holds it back.
"""

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from kedge.algorithms.feddc import Drift
from kedge.algorithms.feddyn import DynamicRegularizer
from kedge.audit.bed import Bed, quadratics
from kedge.audit.finding import Finding
from kedge.config.task import Task
from kedge.core.algorithm import Algorithm, LocalTraining, Stage
from kedge.core.correction import Correction
from kedge.core.optimizers import SGD
from kedge.engines.stacked import Stacked
from kedge.running.runner import run

CURVATURES = (1.0, 2.0, 5.0)
CENTERS = ((0.0, 2.0, -1.0), (3.0, -1.0, 0.5), (-2.0, 1.0, 4.0))
SIZES = (6, 2, 1)
START = 1.0
ALPHA = 2.0  # FedDyn: with a weak regulariser it comes, but slowly
LOCAL = LocalTraining(5, 1000, SGD(0.05))
ROUNDS = 120  # all have come to rest
REACHED, MISSED = 1e-9, 1e-2


def bed() -> Bed:
    """Three clients, three units of one parameter each."""
    rows = [(a, *b) for a, b in zip(CURVATURES, CENTERS, strict=True)]
    return quadratics({"u": [START], "v": [START], "w": [START]}, rows, SIZES)


def minimiser(by_size: bool) -> Tensor:
    """The joint minimiser, clients weighted equally or by size."""
    weight = torch.tensor(CURVATURES, dtype=torch.float64)
    if by_size:
        weight = weight * torch.tensor(SIZES, dtype=torch.float64)
    return weight @ torch.tensor(CENTERS, dtype=torch.float64) / weight.sum()


def firm(correction: Correction) -> Correction:
    """FedDyn's or FedDC's regulariser with this bed's α; other corrections as they are."""
    if isinstance(correction, DynamicRegularizer | Drift) and correction.alpha > 0:
        return replace(correction, alpha=ALPHA)
    return correction


def ended(algorithm: Algorithm, local: LocalTraining = LOCAL) -> Tensor:
    """Where a method ends."""
    model, data, loss = bed()
    suited = replace(algorithm, loss=loss, corrections=tuple(firm(c) for c in algorithm.corrections))
    task = Task((Stage(suited, ROUNDS, local),), model, data)
    shared = run(task, Stacked(model, data)).server.shared
    return torch.cat([shared[k] for k in sorted(shared)])


def reaches(algorithm: Algorithm, by_size: bool = False) -> Finding:
    """It comes to the joint minimiser."""
    far = float((ended(algorithm) - minimiser(by_size)).norm())
    return Finding(far <= REACHED, far, f"{far:.1e} from the joint minimiser, at most {REACHED:.0e}")


def held_back(algorithm: Algorithm) -> Finding:
    """It comes to rest between the start and the joint minimiser, where the closed form says."""
    pull = ALPHA * len(CURVATURES)
    between = (sum(CURVATURES) * minimiser(False) + pull * START) / (sum(CURVATURES) + pull)
    return rested(ended(algorithm), between, minimiser(False))


def rest(mu: float, steps: Sequence[int], by_size: bool = True) -> Tensor:
    """Where FedProx rests when the units take so many steps."""
    a = torch.tensor(CURVATURES, dtype=torch.float64)[:, None]  # [clients, 1]
    n = torch.tensor(SIZES if by_size else (1,) * len(SIZES), dtype=torch.float64)[:, None]
    share = (1 - (1 - LOCAL.optimizer.rate(0) * (a + mu)) ** torch.tensor(steps)) * a / (a + mu)
    weight = n * share  # [clients, units]
    return (weight * torch.tensor(CENTERS, dtype=torch.float64)).sum(0) / weight.sum(0)


def misses(algorithm: Algorithm, mu: float, steps: Sequence[int], by_size: bool = True) -> Finding:
    """It comes to rest elsewhere, and where the closed form says."""
    return rested(ended(algorithm), rest(mu, steps, by_size), minimiser(by_size))


def rested(end: Tensor, where: Tensor, joint: Tensor) -> Finding:
    """Whether it ended at the closed form's point and not at the joint minimiser."""
    off, far = float((end - where).norm()), float((end - joint).norm())
    detail = (
        f"{off:.1e} from the closed form, at most {REACHED:.0e}; it misses the joint minimiser by {far:.3f}, "
        f"as it must, at least {MISSED:g}"
    )
    return Finding(off <= REACHED and far >= MISSED, off, detail)
