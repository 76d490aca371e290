"""FedROD (Chen and Chao, 2022): one generic head for all clients, and each client's personal head on top.

Generic: CE(a + log n_y, y) with the logits a = head(φ) and the client's class counts n_y (balanced softmax).
It trains the base and the generic head, which are averaged. Personal: CE(stop(a) + ψ_i(stop(φ)), y) trains
only the head ψ_i, which starts as a copy of the generic head and stays with the client. stop() detaches, so
one backward pass computes both gradients. n_y counts the whole local training set (PFLlib leaves out the last
short batch); for a class without samples, 10⁻⁹ replaces n_y. The global model predicts with a, a client
with a + ψ_i(φ).
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
    """The model with a second linear layer on its features, the personal head."""
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
        out, new_buffers = model.apply(generic, buffers, batch, train)
        bias = params[PERSONAL[1]] if PERSONAL[1] in names else None
        personal = F.linear(out.features.detach(), params[PERSONAL[0]], bias)
        return out._replace(extra={**out.extra, "personal": out.logits.detach() + personal}), new_buffers

    return replace(model, init=init, apply=apply, extra=(*model.extra, *names))


def copied(model: Model, leaves: Leaves) -> Leaves:
    """The initial personal head: copies of the generic head's tensors in `leaves`."""
    params = {**model.frozen, **leaves}
    return {new: params[old].detach().clone() for new, old in zip(PERSONAL, model.classifier, strict=False)}


def balanced(step: Step) -> Tensor:
    """The loss: balanced softmax for the generic head, plus cross-entropy for the personal head."""
    prior = step.facts["class_counts"].clamp_min(1e-9).log()
    generic = F.cross_entropy(step.out.logits + prior, step.batch.y, reduction="none")
    personal = F.cross_entropy(step.out.extra["personal"], step.batch.y, reduction="none")
    return weighted_mean(generic + personal, step.batch)


def generic_part(model: Model) -> frozenset[str]:
    """All leaves except those of the personal head."""
    return frozenset(k for unit in model.units for k in unit)


def personal_logits(out: Output) -> Tensor:
    """The logits of a client's own model."""
    return out.extra["personal"]


def fedrod(weights: Weights = "size") -> Algorithm:
    """A balanced generic head that is averaged, and each client's personal head on top of it."""
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
