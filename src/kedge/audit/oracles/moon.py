"""Oracle moon of the specification: the contrast of features, its edges, and which model is the previous."""

import math
from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from kedge.audit.bed import ORACLES, Given, Witness
from kedge.audit.finding import Finding, Pair, apart, compared
from kedge.audit.oracles.averaging import TOLERANCE
from kedge.audit.oracles.client_terms import term
from kedge.audit.problems import ENGINES, federation, perceptron
from kedge.config.task import Task
from kedge.core.algorithm import Algorithm, LocalTraining, Stage
from kedge.core.correction import Step
from kedge.core.model import Batch, Output
from kedge.core.optimizers import SGD
from kedge.core.tree import Leaves
from kedge.running.runner import run

Rows = Sequence[Sequence[float]]


def contrast(z: Tensor, sent: Rows, previous: Rows, known: float = 1.0) -> Step:
    """A step that shows the correction these features; the rows after the first are padding."""
    shown = [torch.tensor(rows, dtype=z.dtype) for rows in (sent, previous)]
    weight = (torch.arange(len(z)) < 1).to(z.dtype)
    zeros = torch.zeros(len(z), dtype=torch.int64)
    batch = Batch(z, zeros, weight, torch.zeros(2, dtype=torch.int64))
    state = {"previous": {"model": torch.tensor(1)}, "known": torch.tensor(known, dtype=z.dtype)}

    def at(leaves: Leaves) -> Output:
        return Output(shown[int(leaves["model"])], z)

    return Step({}, {"model": torch.tensor(0)}, batch, Output(z, z), at, state, {}, {}, torch.tensor(0))


def moon(algorithm: Algorithm, mu: float) -> Finding:
    """The term of the oracle's features, with and without padding, and 0 without a previous model.

    A feature orthogonal to z has the cosine 0, and then the other cosine is ∓τ log(e^ℓ − 1).
    """
    given, want = ORACLES["moon"]["inputs"], ORACLES["moon"]["expected"]
    z, sent, before = given["z"], given["z_global"], given["z_prev"]
    tau: float = given["tau"]
    across, ce = [z[1], -z[0]], 0.7

    def loss(near: Sequence[float], far: Sequence[float], padding: int = 0, known: float = 1.0) -> float:
        rows = torch.tensor([z] + [[9.0, -3.0]] * padding, dtype=torch.float64)
        others = [[-9.0, 2.0]] * padding
        return float(term(algorithm, contrast(rows, [near, *others], [far, *others], known)))

    def cosine(value: float) -> float:
        return tau * math.log(math.expm1(value / mu))

    pairs = [
        Pair("cos(z, z_g)", want["cos_pos"], -cosine(loss(sent, across))),
        Pair("cos(z, z_p)", want["cos_neg"], cosine(loss(across, before))),
        Pair("z_p = z_g", mu * want["l_con_round1_when_z_prev==z_global"], loss(sent, sent)),
        Pair("no previous", want["l_con_when_prev_pool_empty"], loss(sent, before, known=0.0)),
        Pair("with a loss of 0.7", want[f"total_with_ce_0.7_mu_{mu:g}"], ce + loss(sent, before)),
    ]
    pairs += [Pair(f"{n} rows of padding", mu * want["l_con"], loss(sent, before, n)) for n in (0, 2)]
    return compared(pairs, TOLERANCE)


def edges(algorithm: Algorithm, mu: float, tau: float) -> Finding:
    """Features of all zeros give a number and a gradient; a large term is what its formula says.

    Where z_g = −z and z_p = z it is log(1 + e^{2/τ}), linear only up to e^{−2/τ}.
    """
    zero, some, opposite = [0.0, 0.0], [1.0, 2.0], [-1.0, -2.0]
    pairs = []
    for name, z, near, far in (
        ("z", zero, some, opposite),
        ("z_g", some, zero, some),
        ("z_p", some, some, zero),
    ):
        rows = torch.tensor([z], dtype=torch.float64).requires_grad_()
        value = term(algorithm, contrast(rows, [near], [far]))
        slope = torch.autograd.grad(value, rows)[0]
        finite = bool(value.isfinite().all() and slope.isfinite().all())
        pairs.append(Pair(f"{name} = 0 is finite", 1.0, float(finite)))
    value = term(algorithm, contrast(torch.tensor([some], dtype=torch.float64), [opposite], [some]))
    pairs.append(Pair("z_g = −z, z_p = z", mu * math.log1p(math.exp(2 / tau)), float(value)))
    return compared(pairs, TOLERANCE)


def previous(algorithm: Algorithm) -> Finding:
    """The previous model is the client's own of the last round it took part in; before that it has none."""
    cohorts = ((0,), (1,), (0, 2), (1, 2))
    model, data = perceptron(algorithm), federation((4, 7, 9))
    watched = replace(algorithm, corrections=(*algorithm.corrections, Witness(1)))
    pairs = []
    for name, engine in ENGINES.items():
        for rounds in range(1, len(cohorts) + 1):
            place = engine(model, data)
            stage = Stage(watched, rounds, LocalTraining(1, 4, SGD(0.1)))
            run(Task((stage,), model, data, Given(cohorts=cohorts)), place)
            rows = place.save()
            asked = {str(client) for cohort in cohorts[:rounds] for client in cohort}
            pairs.append(Pair(f"{name}, round {rounds}, clients without", 0, len(asked ^ set(rows))))
            for client, row in rows.items():
                own, path = row["slots"]["contrast"], row["slots"]["witness"]
                where = f"{name}, round {rounds}, client {client}"
                gap = max(apart(own["previous"][k], v[-1]) for k, v in path.items())
                pairs.append(Pair(f"{where}, from its last model", 0.0, gap))
                pairs.append(Pair(f"{where}, knows it", 1.0, float(own["known"])))
    return compared(pairs, 0.0)
