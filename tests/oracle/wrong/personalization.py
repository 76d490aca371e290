"""Wrong variants of FedPer, LG-FedAvg, FedRep, FedBABU and FedROD."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

import torch
from tests.oracle.wrong.every_method import Leaking
from tests.oracle.wrong.variant import Checks, with_corrections
from torch import Tensor
from torch.nn import functional as F

from kedge.algorithms import fedavg, fedbabu, fedper, fedrep, fedrod, lg_fedavg
from kedge.algorithms.fedrep import HeadThenBody
from kedge.algorithms.fedrod import PERSONAL, balanced, with_personal_head
from kedge.algorithms.layer_expansion import vanilla
from kedge.audit.finding import Finding
from kedge.audit.oracles import fedrod as oracle_fedrod
from kedge.audit.oracles import personal as oracle_personal
from kedge.audit.properties import frozen_units
from kedge.audit.references import feature_objectives, gradients
from kedge.audit.references.personal_reductions import (
    fedrod_of_one_client,
    fedrod_shares_balanced_fedavg,
    frozen_head_isolates_clients,
    head_trains,
    one_client_is_sgd,
    open_all,
    open_body,
    open_head_for_two_epochs,
)
from kedge.audit.registry.personalization import BY_SIZE, UNIFORM
from kedge.core.algorithm import Algorithm, logits
from kedge.core.correction import Step
from kedge.core.losses import weighted_mean
from kedge.core.model import Batch, Model, Output
from kedge.core.schedules import Clock, Mask
from kedge.core.selections import everything
from kedge.core.tree import Leaves


@dataclass(frozen=True)
class BodyThenHead:
    """FedRep's phases in the wrong order."""

    share: float
    count: int = 1

    def __call__(self, clock: Clock, units: int) -> Mask:
        own = HeadThenBody(1 - self.share, self.count)(clock, units)
        return tuple(not opened for opened in own)


def two_losses(step: Step, prior: Tensor) -> Tensor:
    generic = F.cross_entropy(step.out.logits + prior, step.batch.y, reduction="none")
    personal = F.cross_entropy(step.out.extra["personal"], step.batch.y, reduction="none")
    return weighted_mean(generic + personal, step.batch)


def prior_subtracted(step: Step) -> Tensor:
    """The prior is subtracted instead of added."""
    return two_losses(step, -step.facts["class_counts"].clamp_min(1e-9).log())


def without_prior(step: Step) -> Tensor:
    return two_losses(step, torch.zeros_like(step.facts["class_counts"]))


def prior_of_batch(step: Step) -> Tensor:
    """The prior uses class counts of the batch instead of all samples."""
    classes = torch.arange(step.out.logits.shape[1])
    counts = ((step.batch.y[:, None] == classes) * step.batch.weight[:, None]).sum(0)
    return two_losses(step, counts.clamp_min(1e-9).log())


def log_of_zero(step: Step) -> Tensor:
    """log 0 for a class without samples on the client."""
    return two_losses(step, step.facts["class_counts"].log())


def attached_personal_head(model: Model) -> Model:
    """Personal logits through which gradients reach the body and the generic head."""
    own = with_personal_head(model)

    def apply(params: Leaves, buffers: Leaves, batch: Batch, train: bool) -> tuple[Output, Leaves]:
        generic = {k: v for k, v in params.items() if k not in PERSONAL}
        out, moved = model.apply(generic, buffers, batch, train)
        personal = F.linear(out.features, params[PERSONAL[0]], params.get(PERSONAL[1]))
        return out._replace(extra={"personal": out.logits + personal}), moved

    return replace(own, apply=apply)


def personal_alone(model: Model) -> Model:
    """Personal logits ψ_i(φ), without a."""
    own = with_personal_head(model)

    def apply(params: Leaves, buffers: Leaves, batch: Batch, train: bool) -> tuple[Output, Leaves]:
        out, moved = own.apply(params, buffers, batch, train)
        return out._replace(extra={"personal": out.extra["personal"] - out.logits.detach()}), moved

    return replace(own, apply=apply)


def from_zero(model: Model) -> Model:
    """A personal head that starts with zeros."""
    own = with_personal_head(model)

    def init(seed: int) -> tuple[Leaves, Leaves]:
        params, buffers = own.init(seed)
        return {k: v * 0 if k in PERSONAL else v for k, v in params.items()}, buffers

    return replace(own, init=init)


def fedrod_with(
    loss: Callable[[Step], Tensor] = balanced, adapt: Callable[[Model], Model] | None = None
) -> Algorithm:
    return replace(fedrod(), loss=loss, adapt=adapt or with_personal_head)


def tuned_in(part: oracle_personal.Part, algorithm: Algorithm) -> Finding:
    """Fine-tune only `part`, and compare with the oracle's fine-tuning of both parts."""
    return oracle_personal.compare_tuned(algorithm, part, oracle_personal.by_leaf(TUNED))


TUNED = oracle_personal.EXPECTED["fedbabu"]["after_1_finetune_step_(s,p)"]
DECAYING = with_corrections(fedbabu(), Leaking())
BODY_FIRST = replace(fedrep(), schedule=BodyThenHead(0.5))
BODY_FIRST_LONG = replace(fedrep(), schedule=BodyThenHead(1 / 3))
closed = partial(gradients.local_gradient, objective=feature_objectives.fedrod, opened=3)

WRONG: Checks = {
    "fedper shares its head": partial(oracle_personal.fedper, fedavg()),
    "fedper shares its head, later": partial(oracle_personal.kept_leaf_waits, fedavg(), "p"),
    "fedper uniform": partial(oracle_personal.fedper, fedper(weights="uniform")),
    "fedper keeps the base instead": partial(oracle_personal.kept_leaf_waits, lg_fedavg(), "p"),
    "fedper freezes its head": partial(
        one_client_is_sgd,
        replace(fedper(), schedule=fedbabu().schedule),
        open_all,
    ),
    "fedper tuned without its head": partial(oracle_personal.fedper_tuned, fedbabu()),
    "lg-fedavg by size for uniform": partial(oracle_personal.lg_fedavg, lg_fedavg(), UNIFORM),
    "lg-fedavg uniform for size": partial(oracle_personal.lg_fedavg, lg_fedavg(weights="uniform"), BY_SIZE),
    "lg-fedavg shares its base": partial(oracle_personal.lg_fedavg, fedavg(), BY_SIZE),
    "lg-fedavg shares its base, alone": partial(frozen_head_isolates_clients, fedavg()),
    "fedrep body first": partial(oracle_personal.fedrep, BODY_FIRST),
    "fedrep body first, one client": partial(one_client_is_sgd, BODY_FIRST_LONG, open_head_for_two_epochs),
    "fedrep both at once": partial(oracle_personal.fedrep, fedper()),
    "fedrep half and half": partial(one_client_is_sgd, fedrep(), open_head_for_two_epochs),
    "fedrep uniform": partial(oracle_personal.fedrep, fedrep(weights="uniform")),
    "fedbabu trains its head": partial(oracle_personal.fedbabu, fedavg()),
    "fedbabu decays its head": partial(one_client_is_sgd, DECAYING, open_body),
    "fedbabu decays its head, frozen": partial(frozen_units.closed_units_keep_their_bits, DECAYING),
    "fedbabu decays its head, moves": partial(head_trains, DECAYING, False),
    "fedbabu uniform": partial(oracle_personal.fedbabu, fedbabu("uniform")),
    "fedbabu tunes the head alone": partial(tuned_in, "head", fedbabu()),
    "fedbabu tunes the body alone": partial(tuned_in, "body", fedbabu()),
    "fedbabu tunes what fedavg made": partial(oracle_personal.fedbabu_tuned, fedavg(), "all"),
    "vanilla over fedavg does not rest": partial(
        head_trains, replace(fedavg(), schedule=vanilla((0, 2))), False
    ),
    "vanilla that never opens a unit": partial(
        head_trains, replace(fedavg(), schedule=vanilla((0, 9))), True
    ),
    "fedrod prior subtracted": partial(oracle_fedrod.fedrod, fedrod_with(prior_subtracted)),
    "fedrod prior subtracted, gradient": partial(closed, fedrod_with(prior_subtracted)),
    "fedrod no prior": partial(oracle_fedrod.fedrod, fedrod_with(without_prior)),
    "fedrod no prior, shared": partial(fedrod_shares_balanced_fedavg, fedrod_with(without_prior)),
    "fedrod counts of the batch": partial(fedrod_of_one_client, fedrod_with(prior_of_batch)),
    "fedrod counts of the batch, shared": partial(fedrod_shares_balanced_fedavg, fedrod_with(prior_of_batch)),
    "fedrod log 0": partial(oracle_fedrod.absent_class, fedrod_with(log_of_zero)),
    "fedrod flows into the body, gradient": partial(closed, fedrod_with(adapt=attached_personal_head)),
    "fedrod flows into the body": partial(
        fedrod_shares_balanced_fedavg, fedrod_with(adapt=attached_personal_head)
    ),
    "fedrod flows into the body, one client": partial(
        fedrod_of_one_client, fedrod_with(adapt=attached_personal_head)
    ),
    "fedrod flows into the generic head": partial(
        oracle_fedrod.fedrod, fedrod_with(adapt=attached_personal_head)
    ),
    "fedrod without a": partial(oracle_fedrod.fedrod, fedrod_with(adapt=personal_alone)),
    "fedrod without a, answers": partial(oracle_fedrod.predictions, fedrod_with(adapt=personal_alone)),
    "fedrod begins with zeros": partial(oracle_fedrod.predictions, fedrod_with(adapt=from_zero)),
    "fedrod answers with a": partial(oracle_fedrod.predictions, replace(fedrod(), predict=logits)),
    "fedrod shares its personal head": partial(
        fedrod_shares_balanced_fedavg, replace(fedrod(), shared=everything)
    ),
}


HARMLESS: Checks = {
    "the batch's counts are right where it is everything": partial(closed, fedrod_with(prior_of_batch)),
    "log 0 is right where no class is absent": partial(oracle_fedrod.fedrod, fedrod_with(log_of_zero)),
    "a decaying head is right without weight decay": partial(oracle_personal.fedbabu, DECAYING),
    "a personal head from zero has the right losses": partial(
        oracle_fedrod.fedrod, fedrod_with(adapt=from_zero)
    ),
}
