"""Oracle moon of the specification: the contrast of features, extreme features, and the previous model."""

import math
from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from kedge.audit.finding import Finding, Pair, compare_numbers, max_difference
from kedge.audit.oracles.averaging import TOLERANCE
from kedge.audit.oracles.client_terms import loss_term
from kedge.audit.problems import federation, perceptron
from kedge.audit.recorded_run import FixedCohorts, StepRecorder, last_model
from kedge.audit.specification import ORACLES
from kedge.audit.training import ENGINES
from kedge.config.task import Task
from kedge.core.algorithm import Algorithm, LocalTraining, Stage
from kedge.core.correction import Step
from kedge.core.model import Batch, Output
from kedge.core.optimizers import SGD
from kedge.core.tree import Leaves
from kedge.running.runner import run

Features = Sequence[Sequence[float]]


def step_with_features(z: Tensor, sent: Features, previous_model: Features, known: float = 1.0) -> Step:
    """A step in which the correction receives these features. Rows after the first are padding."""
    by_model = [torch.tensor(rows, dtype=z.dtype) for rows in (sent, previous_model)]
    weight = (torch.arange(len(z)) < 1).to(z.dtype)
    zeros = torch.zeros(len(z), dtype=torch.int64)
    batch = Batch(z, zeros, weight, torch.zeros(2, dtype=torch.int64))
    state = {"previous": {"model": torch.tensor(1)}, "known": torch.tensor(known, dtype=z.dtype)}

    def at(leaves: Leaves) -> Output:
        return Output(by_model[int(leaves["model"])], z)

    return Step({}, {"model": torch.tensor(0)}, batch, Output(z, z), at, state, {}, {}, torch.tensor(0))


def contrast(algorithm: Algorithm, mu: float) -> Finding:
    """The term for the oracle's features, with and without padding. It is 0 without a previous model.

    If one of the two features is orthogonal to z, its cosine is 0 and the other cosine is ∓τ log(e^ℓ − 1).
    """
    given, expected = ORACLES["moon"]["inputs"], ORACLES["moon"]["expected"]
    z, sent, before = given["z"], given["z_global"], given["z_prev"]
    tau: float = given["tau"]
    across, ce = [z[1], -z[0]], 0.7

    def loss(near: Sequence[float], far: Sequence[float], padding: int = 0, known: float = 1.0) -> float:
        rows = torch.tensor([z] + [[9.0, -3.0]] * padding, dtype=torch.float64)
        others = [[-9.0, 2.0]] * padding
        return float(loss_term(algorithm, step_with_features(rows, [near, *others], [far, *others], known)))

    def cosine(value: float) -> float:
        return tau * math.log(math.expm1(value / mu))

    pairs = [
        Pair("cos(z, z_g)", expected["cos_pos"], -cosine(loss(sent, across))),
        Pair("cos(z, z_p)", expected["cos_neg"], cosine(loss(across, before))),
        Pair("z_p = z_g", mu * expected["l_con_round1_when_z_prev==z_global"], loss(sent, sent)),
        Pair("no previous", expected["l_con_when_prev_pool_empty"], loss(sent, before, known=0.0)),
        Pair("with a loss of 0.7", expected[f"total_with_ce_0.7_mu_{mu:g}"], ce + loss(sent, before)),
    ]
    pairs += [Pair(f"{n} rows of padding", mu * expected["l_con"], loss(sent, before, n)) for n in (0, 2)]
    return compare_numbers(pairs, TOLERANCE)


def extreme_features(algorithm: Algorithm, mu: float, tau: float) -> Finding:
    """The term and its gradient are finite for features of zeros. For opposite features the term is exact.

    With z_g = −z and z_p = z the term is log(1 + e^{2/τ}), not the linear 2/τ.
    """
    zero, some, opposite = [0.0, 0.0], [1.0, 2.0], [-1.0, -2.0]
    pairs = []
    for name, z, near, far in (
        ("z", zero, some, opposite),
        ("z_g", some, zero, some),
        ("z_p", some, some, zero),
    ):
        rows = torch.tensor([z], dtype=torch.float64).requires_grad_()
        value = loss_term(algorithm, step_with_features(rows, [near], [far]))
        slope = torch.autograd.grad(value, rows)[0]
        finite = bool(value.isfinite().all() and slope.isfinite().all())
        pairs.append(Pair(f"{name} = 0 is finite", 1.0, float(finite)))
    value = loss_term(
        algorithm, step_with_features(torch.tensor([some], dtype=torch.float64), [opposite], [some])
    )
    pairs.append(Pair("z_g = −z, z_p = z", mu * math.log1p(math.exp(2 / tau)), float(value)))
    return compare_numbers(pairs, TOLERANCE)


def previous_model(algorithm: Algorithm) -> Finding:
    """The previous model is the client's model of the last round in which it took part."""
    cohorts = ((0,), (1,), (0, 2), (1, 2))
    model, data = perceptron(algorithm), federation((4, 7, 9))
    recorded = replace(algorithm, corrections=(*algorithm.corrections, StepRecorder(1)))
    pairs = []
    for name, engine in ENGINES.items():
        for rounds in range(1, len(cohorts) + 1):
            trainer = engine(model, data)
            stage = Stage(recorded, rounds, LocalTraining(1, 4, SGD(0.1)))
            run(Task((stage,), model, data, FixedCohorts(cohorts=cohorts)), trainer)
            memories = trainer.save()
            participants = {str(client) for cohort in cohorts[:rounds] for client in cohort}
            mismatches = participants ^ set(memories)
            pairs.append(Pair(f"{name}, round {rounds}, clients without a memory", 0, len(mismatches)))
            for client, memory in memories.items():
                state, where = memory["slots"]["contrast"], f"{name}, round {rounds}, client {client}"
                previous = state["previous"]
                difference = max(max_difference(previous[k], v) for k, v in last_model(memory).items())
                pairs.append(Pair(f"{where}, from its last model", 0.0, difference))
                pairs.append(Pair(f"{where}, has a previous model", 1.0, float(state["known"])))
    return compare_numbers(pairs, 0.0)
