"""Three clients with unequal quadratics, and the points to which methods converge on them.

With f_i(w) = a_i/2 ‖w − b_i‖², the joint objective Σ ω_i f_i has its minimum at Σ ω_i a_i b_i / Σ ω_i a_i.

- SCAFFOLD, FedDC and FedDyn, also under FedBug, have their only fixed point where Σ ∇f_i = 0: the minimizer
  with equal weights. FedDyn with α_i ∝ 1/n_i has it where Σ n_i ∇f_i = 0,
  because −α_i u_i = ∇f_i and Σ u_i = 0.
- K local steps of FedProx (FedAvg is μ = 0) move client i by r_i·(b_i − w),

      r_i = (1 − (1 − η(a_i + μ))ᴷ) · a_i/(a_i + μ),

  so that it converges to Σ n_i r_i b_i / Σ n_i r_i. This is not the minimizer unless K = 1. Under FedBug, K
  counts the steps of a unit. FedDyn without the regularizer converges as FedAvg with equal weights does.
- FedDyn without h converges to a point with w_i = θ for all i, so that ∇f_i(θ) = −α u_i. The mean of u_i is
  θ − θ⁰, hence θ = (Σ a_i b_i + mα θ⁰) / (Σ a_i + mα), which depends on the start θ⁰.
"""

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from kedge.algorithms.feddc import Drift
from kedge.algorithms.feddyn import DynamicRegularizer
from kedge.audit.bed import Bed, quadratic_bed
from kedge.audit.finding import Finding
from kedge.config.task import Task
from kedge.core.algorithm import Algorithm, LocalTraining, Stage
from kedge.core.correction import Correction
from kedge.core.optimizers import SGD
from kedge.engines.stack.stacked import Stacked
from kedge.running.runner import run

CURVATURES = (1.0, 2.0, 5.0)
CENTERS = ((0.0, 2.0, -1.0), (3.0, -1.0, 0.5), (-2.0, 1.0, 4.0))
SIZES = (6, 2, 1)
START = 1.0
ALPHA = 2.0  # of FedDyn and FedDC; with a smaller α they converge slowly
LOCAL = LocalTraining(5, 1000, SGD(0.05))
ROUNDS = 120  # every method has converged
REACHED, MISSED = 1e-9, 1e-2  # distances: at most, to reach a point; at least, to miss the minimizer


def three_clients() -> Bed:
    """Three clients, and a model of three units with one parameter each."""
    rows = [(a, *b) for a, b in zip(CURVATURES, CENTERS, strict=True)]
    return quadratic_bed({"u": [START], "v": [START], "w": [START]}, rows, SIZES)


def joint_minimizer(by_size: bool) -> Tensor:
    """The minimizer of the joint objective, with clients weighted by size or equally."""
    weight = torch.tensor(CURVATURES, dtype=torch.float64)
    if by_size:
        weight = weight * torch.tensor(SIZES, dtype=torch.float64)
    return weight @ torch.tensor(CENTERS, dtype=torch.float64) / weight.sum()


def with_alpha(correction: Correction) -> Correction:
    """FedDyn's or FedDC's correction with `ALPHA`; other corrections unchanged."""
    if isinstance(correction, DynamicRegularizer | Drift) and correction.alpha > 0:
        return replace(correction, alpha=ALPHA)
    return correction


def final_model(algorithm: Algorithm, local: LocalTraining = LOCAL) -> Tensor:
    """The server's model after `ROUNDS` rounds, as one vector."""
    model, data, loss = three_clients()
    corrections = tuple(with_alpha(correction) for correction in algorithm.corrections)
    task = Task((Stage(replace(algorithm, loss=loss, corrections=corrections), ROUNDS, local),), model, data)
    shared = run(task, Stacked(model, data)).server.shared
    return torch.cat([shared[k] for k in sorted(shared)])


def fedprox_limit(mu: float, steps: Sequence[int], by_size: bool = True) -> Tensor:
    """The point to which FedProx converges; `steps` has the local steps of each unit."""
    a = torch.tensor(CURVATURES, dtype=torch.float64)[:, None]  # [clients, 1]
    n = torch.tensor(SIZES if by_size else (1,) * len(SIZES), dtype=torch.float64)[:, None]
    share = (1 - (1 - LOCAL.optimizer.rate(0) * (a + mu)) ** torch.tensor(steps)) * a / (a + mu)
    weight = n * share  # [clients, units]
    return (weight * torch.tensor(CENTERS, dtype=torch.float64)).sum(0) / weight.sum(0)


def reaches_minimizer(algorithm: Algorithm, by_size: bool = False) -> Finding:
    """The method converges to the joint minimizer."""
    distance = float((final_model(algorithm) - joint_minimizer(by_size)).norm())
    detail = f"{distance:.1e} from the joint minimizer, at most {REACHED:.0e}"
    return Finding(distance <= REACHED, distance, detail)


def misses_minimizer(algorithm: Algorithm, mu: float, steps: Sequence[int], by_size: bool = True) -> Finding:
    """The method converges to FedProx's limit, and not to the joint minimizer."""
    return compare_limit(final_model(algorithm), fedprox_limit(mu, steps, by_size), joint_minimizer(by_size))


def stops_before_minimizer(algorithm: Algorithm) -> Finding:
    """The method converges to FedDyn's limit without h, between the start and the joint minimizer."""
    pull = ALPHA * len(CURVATURES)
    between = (sum(CURVATURES) * joint_minimizer(False) + pull * START) / (sum(CURVATURES) + pull)
    return compare_limit(final_model(algorithm), between, joint_minimizer(False))


def compare_limit(model: Tensor, limit: Tensor, minimizer: Tensor) -> Finding:
    """Whether the model is at `limit`, the closed form, and not at the joint minimizer."""
    error, missed = float((model - limit).norm()), float((model - minimizer).norm())
    detail = (
        f"{error:.1e} from the closed form, at most {REACHED:.0e}; {missed:.3f} from the joint minimizer, "
        f"which it must miss by at least {MISSED:g}"
    )
    return Finding(error <= REACHED and missed >= MISSED, error, detail)
