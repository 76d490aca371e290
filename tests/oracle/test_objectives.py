"""Wrong variants of what clients add to their objective are caught; the terms' gradients are right."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from kedge.algorithms import feddc, feddecorr, feddyn, feddyn_no_h, feddyn_no_reg, fedntd
from kedge.algorithms.feddc import Drift
from kedge.algorithms.feddecorr import Decorrelation, decorrelation
from kedge.algorithms.fedntd import NotTrueDistillation
from kedge.audit.bed import bed_q, local_q, moments
from kedge.audit.finding import Finding
from kedge.audit.oracles import client_terms as oracle
from kedge.audit.oracles import feddyn as oracle_feddyn
from kedge.audit.problems import ENGINES
from kedge.audit.references import gradients, objectives, quadratics
from kedge.audit.registry.checks import FULL
from kedge.audit.registry.client_terms import TAU_1, TAU_3
from kedge.core.algorithm import Algorithm, LocalTraining, Stage
from kedge.core.correction import Cohort, Correction, End, Step
from kedge.core.errors import RequestError
from kedge.core.losses import weighted_mean
from kedge.core.model import Output
from kedge.core.optimizers import SGD, Adam
from kedge.core.tree import Leaves, Tree, add, sub


class PaperForm(Decorrelation):
    """‖R‖²_F / d²: with the diagonal, and N times smaller."""

    def loss(self, step: Step) -> Tensor:
        count, d = step.batch.weight.sum(), step.out.features.shape[1]
        mean = decorrelation(step.out.features, step.batch.weight) * count / (count - 1).clamp(min=1) ** 2
        return self.beta * (mean * d * (d - 1) + d) / d**2


class Padded(Decorrelation):
    """Every row of the batch, padding included."""

    def loss(self, step: Step) -> Tensor:
        return self.beta * decorrelation(step.out.features, torch.ones_like(step.batch.weight))


class LocalToGlobal(NotTrueDistillation):
    """KL(local ‖ global)."""

    def loss(self, step: Step) -> Tensor:
        turned = replace(step, out=step.at(step.anchor), at=lambda leaves: step.out)
        return NotTrueDistillation.loss(self, turned)


class WithLabel(NotTrueDistillation):
    """Plain distillation: the label's logit takes part."""

    def loss(self, step: Step) -> Tensor:
        tau = self.temperature
        there, here = (out.logits / tau for out in (step.at(step.anchor), step.out))
        divergence = F.kl_div(here.log_softmax(1), there.softmax(1), reduction="none").sum(1)
        return self.beta * tau**2 * weighted_mean(divergence, step.batch)


class Unscaled(NotTrueDistillation):
    """Without τ²."""

    def loss(self, step: Step) -> Tensor:
        return NotTrueDistillation.loss(self, step) / self.temperature**2


class OwnAnchor(Drift):
    """‖w_i − w‖², without the drift."""

    def gradient(self, grads: Leaves, step: Step) -> Leaves:
        lean = sub(step.broadcast["g"], step.state["g"])
        away = sub(step.params, step.anchor)
        return {k: v + self.alpha * away[k] + lean[k] for k, v in grads.items()}


class WithoutServerGradient(Drift):
    """g_i⁺ = g_i − (w_i − w)/(Kη): g is missing."""

    def finish(self, end: End) -> tuple[Tree, Tree]:
        kept, _ = Drift.finish(self, end)
        new = add(kept["g"], end.broadcast["g"])
        return {**kept, "g": new}, {"g": sub(new, end.state["g"])}


class ByParticipants(Drift):
    """Means over |S| instead of all m."""

    def server(self, update: Leaves, mean: Tree, state: Tree, cohort: Cohort) -> tuple[Leaves, Tree]:
        return Drift.server(self, update, mean, state, cohort._replace(population=cohort.size))


def having(correction: Correction, base: Algorithm) -> Algorithm:
    return replace(base, corrections=(correction,))


DC, NTD, NO_REG, NO_H = feddc(0.1), fedntd(), feddyn_no_reg(), feddyn_no_h(0.1)

FAULTS: dict[str, Callable[[], Finding]] = {
    "feddecorr as in the paper": partial(oracle.feddecorr, having(PaperForm(1.0), feddecorr())),
    "feddecorr over padding": partial(oracle.feddecorr, having(Padded(1.0), feddecorr())),
    "feddecorr another beta": partial(oracle.feddecorr, feddecorr(0.1)),
    "feddecorr as in the paper, gradient": partial(
        gradients.local_gradient, having(PaperForm(0.5), feddecorr()), objectives.decorrelated, 3
    ),
    "fedntd the other way": partial(oracle.fedntd, having(LocalToGlobal(1.0, 1.0), NTD), TAU_1),
    "fedntd with the label": partial(oracle.fedntd, having(WithLabel(1.0, 1.0), NTD), TAU_1),
    "fedntd without tau²": partial(oracle.fedntd, having(Unscaled(1.0, 3.0), NTD), TAU_3),
    "fedntd with the label, gradient": partial(
        gradients.local_gradient, having(WithLabel(1.0, 2.0), NTD), objectives.distilled, 3
    ),
    "feddc without the drift": partial(oracle.feddc, having(OwnAnchor(0.1), DC)),
    "feddc without the drift, gradient": partial(
        gradients.local_gradient, having(OwnAnchor(0.1), DC), objectives.drifting, 3
    ),
    "feddc without g": partial(oracle.feddc, having(WithoutServerGradient(0.1), DC)),
    "feddc over |S|": partial(oracle.feddc_means, having(ByParticipants(0.1), DC)),
    "no-reg is not feddyn": partial(oracle_feddyn.feddyn, feddyn(0.1), FULL, "feddyn_wo_reg"),
    "no-reg does not reach": partial(quadratics.reaches, NO_REG),
    "no-h is not feddyn": partial(oracle_feddyn.feddyn, feddyn(0.1), FULL, "feddyn_wo_h"),
    "no-h with another alpha": partial(oracle_feddyn.feddyn, feddyn_no_h(0.2), FULL, "feddyn_wo_h"),
    "no-h does not reach": partial(quadratics.reaches, NO_H),
    "feddyn is not held back": partial(quadratics.held_back, feddyn(0.1)),
}


@pytest.mark.parametrize("name", FAULTS)
def test_a_wrong_variant_is_caught(name: str) -> None:
    finding = FAULTS[name]()
    assert not finding.passed, finding.detail


def test_over_participants_is_right_when_everybody_takes_part() -> None:
    assert oracle.feddc(having(ByParticipants(0.1), DC)).passed


@pytest.mark.parametrize("real", [1, 2, 5])
def test_the_gradient_of_decorrelation_is_that_of_finite_differences(real: int) -> None:
    rows = torch.randn(7, 4, generator=torch.Generator().manual_seed(real), dtype=torch.float64)
    weight = (torch.arange(7) < real).double()
    assert torch.autograd.gradcheck(partial(decorrelation, weight=weight), (rows.requires_grad_(),))


def test_decorrelation_of_constant_features_is_zero_and_so_is_its_gradient() -> None:
    """Dead ReLUs: their variance is 0, and only 1e-8 stands under the root."""
    rows = torch.tensor([[0.0, 1.0, 0.0], [0.0, -1.0, 0.0], [0.0, 0.5, 0.0]]).requires_grad_()
    value = decorrelation(rows, torch.ones(3))
    assert value.item() == 0
    assert not torch.autograd.grad(value, rows)[0].any()


@pytest.mark.parametrize("classes", [1, 2, 5])
def test_the_gradient_of_not_true_distillation_is_that_of_finite_differences(classes: int) -> None:
    chance = torch.Generator().manual_seed(classes)
    here, there = (torch.randn(6, classes, generator=chance, dtype=torch.float64) for _ in range(2))
    y = [number % classes for number in range(6)]

    def value(logits: Tensor) -> Tensor:
        seen = oracle.step(Output(logits, logits), Output(there, there), y, 4)
        return oracle.term(fedntd(0.7, 2.0), seen)

    assert torch.autograd.gradcheck(value, (here.requires_grad_(),))


@pytest.mark.parametrize("engine", ENGINES)
def test_feddyn_without_h_goes_on_with_feddyns_memory(engine: str) -> None:
    """After a round of FedDyn on bed Q, u_0 = 0.811 − 1; the next round of either starts from it."""
    stages = [(feddyn(0.1), 1), (feddyn_no_h(0.1), 1)]
    seen = moments(bed_q(), stages, local_q(), [[0, 1]] * 2, ENGINES[engine])
    alone = moments(bed_q(), [(feddyn(0.1), 2)], local_q(), [[0, 1]] * 2, ENGINES[engine])
    for client in ("0", "1"):
        kept, want = (one[1].memories[client]["slots"]["dynamic"]["u"]["w"] for one in (seen, alone))
        assert torch.equal(kept, want)
    assert torch.equal(seen[1].server.shared["w"], alone[1].server.average["w"])


def test_bad_hyper_parameters_are_refused_with_a_reason() -> None:
    with pytest.raises(RequestError, match=r"feddyn-no-h.*need alpha > 0"):
        feddyn_no_h(0.0)
    with pytest.raises(RequestError, match=r"feddc.*need alpha > 0"):
        feddc(-1.0)
    with pytest.raises(RequestError, match=r"feddecorr.*need beta ≥ 0"):
        feddecorr(float("nan"))
    with pytest.raises(RequestError, match=r"fedntd.*need beta ≥ 0"):
        fedntd(-0.1)
    with pytest.raises(RequestError, match="need temperature > 0"):
        fedntd(temperature=0.0)


@pytest.mark.parametrize("optimizer", [SGD(momentum=0.9), Adam()], ids=["momentum", "adam"])
def test_feddc_refuses_momentum_and_adam(optimizer: SGD | Adam) -> None:
    with pytest.raises(RequestError, match=r"feddc with .*plain SGD"):
        Stage(feddc(), 1, LocalTraining(optimizer=optimizer))
