"""Wrong variants of FedDecorr, FedNTD, FedDC and FedDyn's ablations."""

from dataclasses import replace
from functools import partial

import torch
from tests.oracle.wrong.variant import Checks, with_corrections
from torch import Tensor
from torch.nn import functional as F

from kedge.algorithms import feddc, feddecorr, feddyn, feddyn_no_h, feddyn_no_reg, fedntd
from kedge.algorithms.feddc import Drift
from kedge.algorithms.feddecorr import Decorrelation, decorrelation
from kedge.algorithms.fedntd import NotTrueDistillation
from kedge.audit.oracles import client_terms as oracle
from kedge.audit.oracles import feddyn as oracle_feddyn
from kedge.audit.references import gradients, objectives, quadratics
from kedge.audit.registry.client_terms import TAU_1, TAU_3
from kedge.audit.registry.drift_corrections import FULL
from kedge.core.correction import Cohort, End, Step
from kedge.core.losses import weighted_mean
from kedge.core.tree import Leaves, Tree, add, sub


class PaperForm(Decorrelation):
    """‖R‖²_F / d²: with the diagonal, and N times smaller."""

    def loss(self, step: Step) -> Tensor:
        count, d = step.batch.weight.sum(), step.out.features.shape[1]
        mean = decorrelation(step.out.features, step.batch.weight) * count / (count - 1).clamp(min=1) ** 2
        return self.beta * (mean * d * (d - 1) + d) / d**2


class Padded(Decorrelation):
    """The correlation over all rows of the batch, with padding."""

    def loss(self, step: Step) -> Tensor:
        return self.beta * decorrelation(step.out.features, torch.ones_like(step.batch.weight))


class LocalToGlobal(NotTrueDistillation):
    """KL(local ‖ global) instead of KL(global ‖ local)."""

    def loss(self, step: Step) -> Tensor:
        turned = replace(step, out=step.at(step.anchor), at=lambda leaves: step.out)
        return NotTrueDistillation.loss(self, turned)


class WithLabel(NotTrueDistillation):
    """Plain distillation, with the logit of the label."""

    def loss(self, step: Step) -> Tensor:
        tau = self.temperature
        there, here = (out.logits / tau for out in (step.at(step.anchor), step.out))
        divergence = F.kl_div(here.log_softmax(1), there.softmax(1), reduction="none").sum(1)
        return self.beta * tau**2 * weighted_mean(divergence, step.batch)


class Unscaled(NotTrueDistillation):
    """The term without τ²."""

    def loss(self, step: Step) -> Tensor:
        return NotTrueDistillation.loss(self, step) / self.temperature**2


class OwnAnchor(Drift):
    """The penalty ‖w_i − w‖², without the drift h_i."""

    def gradient(self, grads: Leaves, step: Step) -> Leaves:
        lean = sub(step.broadcast["g"], step.state["g"])
        away = sub(step.params, step.anchor)
        return {k: v + self.alpha * away[k] + lean[k] for k, v in grads.items()}


class WithoutServerGradient(Drift):
    """g_i⁺ = g_i − (w_i − w)/(Kη), without g."""

    def finish(self, end: End) -> tuple[Tree, Tree]:
        kept, _ = Drift.finish(self, end)
        new = add(kept["g"], end.broadcast["g"])
        return {**kept, "g": new}, {"g": sub(new, end.state["g"])}


class ByParticipants(Drift):
    """Means over the |S| participants instead of all m clients."""

    def server(self, update: Leaves, mean: Tree, state: Tree, cohort: Cohort) -> tuple[Leaves, Tree]:
        return Drift.server(self, update, mean, state, cohort._replace(population=int(cohort.size)))


DC, NTD, NO_REG, NO_H = feddc(0.1), fedntd(), feddyn_no_reg(), feddyn_no_h(0.1)

WRONG: Checks = {
    "feddecorr as in the paper": partial(oracle.feddecorr, with_corrections(feddecorr(), PaperForm(1.0))),
    "feddecorr over padding": partial(oracle.feddecorr, with_corrections(feddecorr(), Padded(1.0))),
    "feddecorr another beta": partial(oracle.feddecorr, feddecorr(0.1)),
    "feddecorr as in the paper, gradient": partial(
        gradients.local_gradient, with_corrections(feddecorr(), PaperForm(0.5)), objectives.feddecorr, 3
    ),
    "fedntd the other way": partial(oracle.fedntd, with_corrections(NTD, LocalToGlobal(1.0, 1.0)), TAU_1),
    "fedntd with the label": partial(oracle.fedntd, with_corrections(NTD, WithLabel(1.0, 1.0)), TAU_1),
    "fedntd without tau²": partial(oracle.fedntd, with_corrections(NTD, Unscaled(1.0, 3.0)), TAU_3),
    "fedntd with the label, gradient": partial(
        gradients.local_gradient, with_corrections(NTD, WithLabel(1.0, 2.0)), objectives.fedntd, 3
    ),
    "feddc without the drift": partial(oracle.feddc, with_corrections(DC, OwnAnchor(0.1))),
    "feddc without the drift, gradient": partial(
        gradients.local_gradient, with_corrections(DC, OwnAnchor(0.1)), objectives.feddc, 3
    ),
    "feddc without g": partial(oracle.feddc, with_corrections(DC, WithoutServerGradient(0.1))),
    "feddc over |S|": partial(oracle.feddc_means, with_corrections(DC, ByParticipants(0.1))),
    "no-reg is not feddyn": partial(oracle_feddyn.feddyn, feddyn(0.1), FULL, "feddyn_wo_reg"),
    "no-reg does not reach": partial(quadratics.reaches_minimizer, NO_REG),
    "no-h is not feddyn": partial(oracle_feddyn.feddyn, feddyn(0.1), FULL, "feddyn_wo_h"),
    "no-h with another alpha": partial(oracle_feddyn.feddyn, feddyn_no_h(0.2), FULL, "feddyn_wo_h"),
    "no-h does not reach": partial(quadratics.reaches_minimizer, NO_H),
    "feddyn is not held back": partial(quadratics.stops_before_minimizer, feddyn(0.1)),
}

HARMLESS: Checks = {
    "feddc over |S| is right if everybody takes part": partial(
        oracle.feddc, with_corrections(DC, ByParticipants(0.1))
    ),
}
