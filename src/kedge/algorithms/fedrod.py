"""FedROD (Chen and Chao, 2022): a generic head for everybody, and a personal one on top of it.

Generic: CE(a + log n_y, y), a = head(φ), n_y the client's class counts (balanced softmax); it trains base
and generic head, which are averaged. Personal: CE(stop(a) + ψ_i(stop(φ)), y) trains ψ_i alone, which
starts as a copy of the generic head and stays with the client. stop() separates the two, so one backward
pass serves both. Counts are of the whole local training set (PFLlib's leave the last short batch out); a
class the client lacks has log 10⁻⁹ instead of −∞. The global model answers with a, a client with a +
ψ_i(φ).
"""

from dataclasses import replace

from torch import Tensor
from torch.nn import functional as F

from kedge.algorithms.fedavg import Weights, fedavg
from kedge.core.algorithm import Algorithm
from kedge.core.correction import Step
from kedge.core.errors import RequestError
from kedge.core.features import require_features
from kedge.core.losses import weighted_mean
from kedge.core.model import Batch, Model, Output
from kedge.core.tree import Leaves

PERSONAL = ("personal.weight", "personal.bias")


def with_personal_head(model: Model) -> Model:
    """The model with a second classifier on its features."""
    require_features(model.classifier, "fedrod")
    if all(k in model.frozen for k in model.classifier):
        raise RequestError(
            "fedrod trains the classifier as its generic head, but the classifier is frozen: "
            f"{', '.join(model.classifier)} have requires_grad=False. Set requires_grad=True, or use another "
            "method."
        )
    names = dict(zip(PERSONAL, model.classifier, strict=False))

    def init(seed: int) -> tuple[Leaves, Leaves]:
        params, buffers = model.init(seed)
        return {**params, **copied(model, params)}, buffers

    def apply(params: Leaves, buffers: Leaves, batch: Batch, train: bool) -> tuple[Output, Leaves]:
        generic = {k: v for k, v in params.items() if k not in names}
        out, moved = model.apply(generic, buffers, batch, train)
        bias = params[PERSONAL[1]] if PERSONAL[1] in names else None
        personal = F.linear(out.features.detach(), params[PERSONAL[0]], bias)
        return out._replace(extra={**out.extra, "personal": out.logits.detach() + personal}), moved

    return replace(model, init=init, apply=apply, extra=(*model.extra, *names))


def copied(model: Model, leaves: Leaves) -> Leaves:
    """The personal head as a copy of the generic one."""
    every = {**model.frozen, **leaves}
    return {new: every[old].detach().clone() for new, old in zip(PERSONAL, model.classifier, strict=False)}


def balanced(step: Step) -> Tensor:
    """Balanced softmax for the generic head, plain cross-entropy for the personal one."""
    prior = step.facts["class_counts"].clamp_min(1e-9).log()
    generic = F.cross_entropy(step.out.logits + prior, step.batch.y, reduction="none")
    personal = F.cross_entropy(step.out.extra["personal"], step.batch.y, reduction="none")
    return weighted_mean(generic + personal, step.batch)


def generic_part(model: Model) -> frozenset[str]:
    """All leaves but the personal head's."""
    return frozenset(k for unit in model.units for k in unit)


def personal_logits(out: Output) -> Tensor:
    """What a client answers."""
    return out.extra["personal"]


def fedrod(weights: Weights = "size") -> Algorithm:
    """A balanced generic head that is averaged, and every client's own head on top of it."""
    return replace(
        fedavg(weights),
        name="fedrod",
        loss=balanced,
        adapt=with_personal_head,
        heads=PERSONAL,
        headed=copied,
        shared=generic_part,
        predict=personal_logits,
        head_trains=True,
    )
