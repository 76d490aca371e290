"""Wrong variants of FedAvg, FedProx, FedDyn, SCAFFOLD and FedBug."""

from dataclasses import dataclass, replace
from functools import partial
from math import ceil

from tests.oracle.wrong.variant import Checks, with_corrections
from torch import Tensor

from kedge.algorithms import fedavg, fedbug, feddyn, fedprox, scaffold
from kedge.algorithms.feddyn import DynamicRegularizer
from kedge.algorithms.fedprox import Proximal
from kedge.algorithms.scaffold import ControlVariates
from kedge.audit.oracles.averaging import fedavg_clip, fedavg_uniform, first_round, local_steps
from kedge.audit.oracles.fedbug import schedule_case, schedule_rounding, schedule_sequence, update
from kedge.audit.oracles.feddyn import clip_order, to_fedavg
from kedge.audit.oracles.feddyn import feddyn as feddyn_oracle
from kedge.audit.oracles.scaffold import mean_gradient, momentum
from kedge.audit.oracles.scaffold import scaffold as scaffold_oracle
from kedge.audit.references import gradients, objectives, quadratics, reductions
from kedge.audit.registry.drift_corrections import FULL, PARTIAL
from kedge.core.correction import Cohort, End, Step
from kedge.core.schedules import Clock, Mask
from kedge.core.tree import Leaves, Tree, add, axpy, scale, sqnorm, sub


class DividedByParticipants(DynamicRegularizer):
    """h as a mean over the |S| participants instead of all m clients."""

    def server(self, update: Leaves, mean: Tree, state: Tree, cohort: Cohort) -> tuple[Leaves, Tree]:
        u = add(state["u"], update)
        return add(update, u), {"u": u}


class AnchorOnce(DynamicRegularizer):
    """The formula read as α/m·((Σ w_i) − θ), so that θ is subtracted once."""

    def server(self, update: Leaves, mean: Tree, state: Tree, cohort: Cohort) -> tuple[Leaves, Tree]:
        total = axpy(cohort.size, update, scale(cohort.size - 1, cohort.shared))
        u = axpy(1 / cohort.population, total, state["u"])
        return add(update, u), {"u": u}


class InsideClip(DynamicRegularizer):
    """α·w is clipped with the gradient."""

    def gradient(self, grads: Leaves, step: Step) -> Leaves:
        u, anchor = step.state["u"], step.anchor
        return {k: g + self.alpha * (u[k] - anchor[k] + step.params[k]) for k, g in grads.items()}

    def unclipped_gradient(self, step: Step) -> Leaves:
        return {}


class Upward(DynamicRegularizer):
    """⟨g_i, w⟩ with the wrong sign."""

    def gradient(self, grads: Leaves, step: Step) -> Leaves:
        u, anchor = step.state["u"], step.anchor
        return {k: g - self.alpha * (u[k] + anchor[k]) for k, g in grads.items()}


class Distributed(DynamicRegularizer):
    """θ ← γ, without h. It converges to the point where the mean of ∇f_i is −α(θ − θ⁰)."""

    def server(self, update: Leaves, mean: Tree, state: Tree, cohort: Cohort) -> tuple[Leaves, Tree]:
        return update, {"u": axpy(cohort.size / cohort.population, update, state["u"])}


class Undecayed(ControlVariates):
    """c_i with the learning rate of the first round (as in the codes of FedDyn and FedDC)."""

    def finish(self, end: End) -> tuple[Tree, Tree]:
        c, c_i = end.broadcast["c"], end.state["c"]
        time = {k: v / end.lr * 0.1 for k, v in end.lr_time.items()}
        new = {k: c_i[k] - c[k] - end.delta[k] / time[k] for k in c_i}
        return {"c": new}, {"c": sub(new, c_i)}


class WithoutServer(ControlVariates):
    """c_i⁺ = c_i + (x − w_i)/(Kη), without c."""

    def finish(self, end: End) -> tuple[Tree, Tree]:
        new = {k: v - end.delta[k] / end.lr_time[k] for k, v in end.state["c"].items()}
        return {"c": new}, {"c": sub(new, end.state["c"])}


class ControlByParticipants(ControlVariates):
    """c as a mean over the |S| participants instead of all m clients."""

    def server(self, update: Leaves, mean: Tree, state: Tree, cohort: Cohort) -> tuple[Leaves, Tree]:
        return update, {"c": add(state["c"], mean["c"])}


class AllSteps(ControlVariates):
    """c_i with all steps of the round, also for leaves that were frozen in some steps."""

    def finish(self, end: End) -> tuple[Tree, Tree]:
        c, c_i = end.broadcast["c"], end.state["c"]
        new = {k: c_i[k] - c[k] - end.delta[k] / (end.steps * end.lr) for k in c_i}
        return {"c": new}, {"c": sub(new, c_i)}


class NoHalf(Proximal):
    """The penalty μ‖w − wᵗ‖², without the ½."""

    def loss(self, step: Step) -> Tensor:
        return self.mu * sqnorm(sub(step.params, step.anchor))


@dataclass(frozen=True)
class FloorRule:
    """The rule of the released code: a unit opens every ⌊ratio·K/M⌋ steps."""

    ratio: float

    def __call__(self, clock: Clock, units: int) -> Mask:
        period = int(self.ratio * clock.steps / units)
        return tuple(clock.step // period >= unit for unit in range(units))


@dataclass(frozen=True)
class FloatRule:
    """The paper's formula in floating point."""

    ratio: float

    def __call__(self, clock: Clock, units: int) -> Mask:
        opened = ceil((clock.step + 1) * units / self.ratio / clock.steps)
        return tuple(unit < opened for unit in range(units))


def top_down(clock: Clock, units: int) -> Mask:
    """The last units open first."""
    return tuple(2 * (clock.step + 1) > clock.steps or unit == units - 1 for unit in range(units))


DYN, SCAFFOLD, PROX = feddyn(0.1), scaffold(), fedprox(0.5)
BUG_SCAFFOLD = fedbug(SCAFFOLD, 0.8)

WRONG: Checks = {
    "feddyn over |S|": partial(feddyn_oracle, with_corrections(DYN, DividedByParticipants(0.1)), PARTIAL),
    "feddyn theta subtracted once": partial(feddyn_oracle, with_corrections(DYN, AnchorOnce(0.1)), FULL),
    "feddyn without h": partial(feddyn_oracle, with_corrections(DYN, Distributed(0.1)), FULL),
    "feddyn wrong sign": partial(feddyn_oracle, with_corrections(DYN, Upward(0.1)), FULL),
    "feddyn wrong sign, gradient": partial(
        gradients.local_gradient, with_corrections(DYN, Upward(0.1)), objectives.feddyn, 3
    ),
    "feddyn another alpha": partial(feddyn_oracle, feddyn(0.2), FULL),
    "feddyn all in the clip": partial(clip_order, with_corrections(DYN, InsideClip(0.1))),
    "feddyn without h, quadratics": partial(
        quadratics.reaches_minimizer, with_corrections(DYN, Distributed(0.1))
    ),
    "feddyn by data, other minimizer": partial(quadratics.reaches_minimizer, feddyn(0.1, "data"), False),
    "switch to the wrong weights": partial(to_fedavg, DYN, fedavg()),
    "switch that never happens": partial(to_fedavg, DYN, DYN),
    "scaffold undecayed": partial(mean_gradient, with_corrections(SCAFFOLD, Undecayed())),
    "scaffold without c": partial(scaffold_oracle, with_corrections(SCAFFOLD, WithoutServer()), FULL),
    "scaffold over |S|": partial(
        scaffold_oracle, with_corrections(SCAFFOLD, ControlByParticipants()), PARTIAL
    ),
    "scaffold all steps": partial(mean_gradient, with_corrections(BUG_SCAFFOLD, AllSteps())),
    "scaffold with momentum, all steps": partial(
        momentum, with_corrections(scaffold(allow_momentum=True), AllSteps(True))
    ),
    "scaffold first round by size": partial(
        reductions.scaffold_first_round, replace(SCAFFOLD, weight=fedavg().weight)
    ),
    "fedprox without the half": partial(local_steps, with_corrections(PROX, NoHalf(0.5)), "fedprox"),
    "fedprox without the half, one client": partial(
        reductions.one_client_is_sgd, with_corrections(PROX, NoHalf(0.3)), 0.9, 0.3
    ),
    "fedprox another mu": partial(first_round, fedprox(0.4, "uniform"), "fedprox", "round1_uniform"),
    "fedavg by size for uniform": partial(fedavg_uniform, fedavg()),
    "fedavg by size for uniform, clip": partial(fedavg_clip, fedavg()),
    "fedavg reaches the minimizer": partial(quadratics.reaches_minimizer, fedavg()),
    "fedavg uniform is not central training": partial(reductions.one_step_is_central, fedavg("uniform")),
    "fedprox is not plain sgd": partial(reductions.one_client_is_sgd, fedprox(0.3)),
    "fedbug is not plain sgd": partial(reductions.one_client_is_sgd, fedbug(fedavg(), 0.8), 0.9),
    "fedbug floor rule, sequence": partial(schedule_sequence, FloorRule(0.4)),
    "fedbug floor rule, opening": partial(schedule_case, FloorRule(0.2), "M=16,P=0.2,K=500"),
    "fedbug in floating point": partial(schedule_rounding, FloatRule(0.7)),
    "fedbug top down": partial(update, replace(fedavg(), schedule=top_down), "bottom_up_(s,p)"),
    "fedbug vanilla": partial(update, fedavg(), "bottom_up_(s,p)"),
}


HARMLESS: Checks = {
    "over |S| is right when everybody takes part": partial(
        feddyn_oracle, with_corrections(DYN, DividedByParticipants(0.1)), FULL
    ),
    "scaffold over |S| likewise": partial(
        scaffold_oracle, with_corrections(SCAFFOLD, ControlByParticipants()), FULL
    ),
    "undecayed is right without decay": partial(
        scaffold_oracle, with_corrections(SCAFFOLD, Undecayed()), FULL
    ),
    "all steps is right without freezing": partial(
        scaffold_oracle, with_corrections(SCAFFOLD, AllSteps()), FULL
    ),
    "inside the clip is right without one": partial(
        feddyn_oracle, with_corrections(DYN, InsideClip(0.1)), FULL
    ),
    "the floor rule is right where it divides": partial(schedule_case, FloorRule(0.4), "M=5,P=0.4,K=50"),
    "floating point is right elsewhere": partial(schedule_sequence, FloatRule(0.4)),
}
