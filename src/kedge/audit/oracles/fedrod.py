"""Oracle fedrod of the specification: two losses on two heads, computed by the model and the kernel."""

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from kedge.audit.finding import Finding, Pair, compare_numbers
from kedge.audit.oracles.averaging import TOLERANCE
from kedge.audit.specification import ORACLES
from kedge.core.algorithm import Algorithm, LocalTraining
from kedge.core.client import (
    Differentiate,
    gradient_by_autograd,
    gradient_by_transform,
    initial_carry,
    local_step,
)
from kedge.core.model import Batch
from kedge.core.optimizers import SGD
from kedge.core.tree import Leaves, sub
from kedge.nn.from_module import from_module

DIFFERENTIATE: dict[str, Differentiate] = {
    "transform": gradient_by_transform,
    "autograd": gradient_by_autograd,
}
CERTAIN = 1e3  # logits of ±CERTAIN have a cross-entropy of 0


def classifier(values: Sequence[float]) -> Tensor:
    """A classifier of one feature. For x = 1 its weights are the logits."""
    return torch.tensor(values, dtype=torch.float64)[:, None]


def loss_and_slopes(
    algorithm: Algorithm,
    generic: Sequence[float],
    personal: Sequence[float],
    counts: Sequence[float],
    label: int,
    differentiate: Differentiate = gradient_by_transform,
) -> tuple[float, Leaves]:
    """The loss, and the slopes of both heads' logits: one kernel step with learning rate 1 on x = 1."""
    model = algorithm.adapt(from_module(nn.Linear(1, len(generic), bias=False).double()))
    w = {"weight": classifier(generic), "personal.weight": classifier(personal)}
    batch = Batch(
        torch.ones(1, 1, dtype=torch.float64),
        torch.tensor([label]),
        torch.ones(1, dtype=torch.float64),
        torch.zeros(2, dtype=torch.int64),
    )
    local = LocalTraining(optimizer=SGD(1.0))
    fixed = {
        "anchor": {"weight": w["weight"]},
        "buffers": {},
        "broadcast": {},
        "facts": {"class_counts": torch.tensor(counts, dtype=torch.float64)},
        "lr": torch.ones((), dtype=torch.float64),
        "round": torch.tensor(0),
    }
    after = local_step(
        algorithm, model, local, tuple(w), initial_carry(local, w, {}, {}), batch, fixed, differentiate
    )
    return float(after["loss"]), sub(w, after["params"])


def fedrod(algorithm: Algorithm) -> Finding:
    """Both losses, alone and together, and their slopes. Each loss has slopes only for its own head."""
    given, expected = ORACLES["fedrod"]["inputs"], ORACLES["fedrod"]["expected"]
    a, psi, counts, y = (given[k] for k in ("generic_logits", "personal_logits", "class_counts", "label"))
    sure = [CERTAIN if c == y else -CERTAIN for c in range(len(a))]  # logits of a head whose loss is 0
    generic, personal = (
        expected["balanced_softmax_loss"],
        expected["personal_loss CE(generic(detached)+personal)"],
    )
    # Personal logits that leave the sum of both heads unchanged if the generic logits are `sure`.
    shifted = [p + logit - s for p, logit, s in zip(psi, a, sure, strict=True)]
    pairs = []
    for name, differentiate in DIFFERENTIATE.items():
        total, slopes = loss_and_slopes(algorithm, a, psi, counts, y, differentiate)
        generic_alone, _ = loss_and_slopes(algorithm, a, sure, counts, y, differentiate)
        personal_alone, _ = loss_and_slopes(algorithm, sure, shifted, counts, y, differentiate)
        pairs += [
            Pair(f"{name}, both losses", generic + personal, total),
            Pair(f"{name}, generic loss", generic, generic_alone),
            Pair(f"{name}, personal loss", personal, personal_alone),
        ]
        for leaf, key in (
            ("weight", "d_bsm/d_generic_logits"),
            ("personal.weight", "d_personal/d_personal_logits"),
        ):
            pairs += [
                Pair(f"{name}, slope of {leaf}[{c}]", v, float(slopes[leaf][c]))
                for c, v in enumerate(expected[key])
            ]
    return compare_numbers(pairs, TOLERANCE)


def absent_class(algorithm: Algorithm) -> Finding:
    """A class without samples on the client has the count 10⁻⁹, so that losses and slopes are finite.

    With counts (9, 0), logits (1, 2) and label 0 the generic loss is log(1 + 10⁻⁹ e²/9e).
    """
    odds = 1e-9 * math.exp(2.0) / (9 * math.exp(1.0))
    pairs = []
    for name, differentiate in DIFFERENTIATE.items():
        personal = [CERTAIN, -CERTAIN]
        loss, slopes = loss_and_slopes(algorithm, [1.0, 2.0], personal, [9.0, 0.0], 0, differentiate)
        pairs.append(Pair(f"{name}, loss", math.log1p(odds), loss))
        for c, sign in enumerate((-1, 1)):
            expected = sign * odds / (1 + odds)
            pairs.append(Pair(f"{name}, slope of weight[{c}]", expected, float(slopes["weight"][c])))
            pairs.append(Pair(f"{name}, slope of personal[{c}]", 0.0, float(slopes["personal.weight"][c])))
    return compare_numbers(pairs, TOLERANCE)


def predictions(algorithm: Algorithm) -> Finding:
    """The global model predicts a, a client a + ψ_i(φ). The start of ψ_i is a copy of the generic head."""
    given = ORACLES["fedrod"]["inputs"]
    model = algorithm.adapt(from_module(nn.Linear(1, 2, bias=False).double()))
    start, _ = model.init(0)
    difference = float((start["personal.weight"] - start["weight"]).abs().max())
    pairs = [Pair("start of ψ_i, minus the generic head", 0.0, difference)]
    w = {
        "weight": classifier(given["generic_logits"]),
        "personal.weight": classifier(given["personal_logits"]),
    }
    x = torch.ones(1, 1, dtype=torch.float64)
    batch = Batch(x, torch.tensor([0]), torch.ones(1, dtype=torch.float64), torch.zeros(2, dtype=torch.int64))
    out, _ = model.apply(w, {}, batch, False)
    for c, (a, psi) in enumerate(zip(given["generic_logits"], given["personal_logits"], strict=True)):
        pairs.append(Pair(f"generic logit {c}", a, float(out.logits[0, c])))
        pairs.append(Pair(f"personal logit {c}", a + psi, float(algorithm.predict(out)[0, c])))
    return compare_numbers(pairs, TOLERANCE)
