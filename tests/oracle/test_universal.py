"""What any method is asked can fail: hidden state, a wrong detach, a leaf touched while it is closed."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial

import pytest
from torch import Tensor

from kedge.algorithms import fedavg, feddyn, fedprox, fedrod, scaffold
from kedge.algorithms.fedprox import Proximal
from kedge.algorithms.layer_expansion import Thaw
from kedge.audit.audit import row_of
from kedge.audit.finding import Finding
from kedge.audit.properties import finite_differences as differences
from kedge.audit.properties import frozen_units, resuming
from kedge.audit.properties.optimizers import takes_momentum
from kedge.audit.properties.values import is_value
from kedge.audit.registry.every_method import CONSTANTS, property_checks
from kedge.core.algorithm import Algorithm
from kedge.core.correction import Cohort, Correction, End, Step
from kedge.core.losses import weighted_mean
from kedge.core.schedules import FixLast
from kedge.core.selections import body
from kedge.core.tree import Leaves, Tree, axpy, scale, sqnorm, sub, zeros

ROUNDS: list[int] = []


def having(*corrections: Correction, base: Algorithm | None = None) -> Algorithm:
    return replace(base or fedavg(), name="mine", corrections=corrections)


@dataclass(frozen=True)
class OnItself(Correction):
    """Momentum kept on the correction, not in the server's state."""

    kept: dict[str, Tensor] = field(default_factory=dict, hash=False)
    name = "momentum"

    def server(self, update: Leaves, mean: Tree, state: Tree, cohort: Cohort) -> tuple[Leaves, Tree]:
        self.kept.update(axpy(0.5, self.kept or zeros(update), update))
        return dict(self.kept), state


@dataclass(frozen=True)
class FirstUpdate(Correction):
    """Remembers on itself the first update it ever saw: nothing that a second run would change."""

    kept: dict[str, Tensor] = field(default_factory=dict, hash=False)
    name = "first"

    def server(self, update: Leaves, mean: Tree, state: Tree, cohort: Cohort) -> tuple[Leaves, Tree]:
        self.kept.update({} if self.kept else update)
        return axpy(0.1, self.kept, update), state


@dataclass(frozen=True)
class InItsModule(Correction):
    """Steps that shrink with the updates counted in a global."""

    name = "shrinking"

    def server(self, update: Leaves, mean: Tree, state: Tree, cohort: Cohort) -> tuple[Leaves, Tree]:
        ROUNDS.append(cohort.round)
        return scale(1 / len(ROUNDS), update), state


@dataclass(frozen=True)
class ByRound(Correction):
    """The same steps, from the round the server is told."""

    name = "shrinking"

    def server(self, update: Leaves, mean: Tree, state: Tree, cohort: Cohort) -> tuple[Leaves, Tree]:
        return scale(1 / (cohort.round + 1), update), state


class Detached(Proximal):
    """The term has a value and no gradient."""

    def loss(self, step: Step) -> Tensor:
        return self.mu / 2 * sqnorm(sub({k: v.detach() for k, v in step.params.items()}, step.anchor))


class OneLeaf(Proximal):
    """The gradient of one small leaf is missing."""

    def loss(self, step: Step) -> Tensor:
        held = {k: v.detach() if k == "0.bias" else v for k, v in step.params.items()}
        return self.mu / 2 * sqnorm(sub(held, step.anchor))


@dataclass(frozen=True)
class Distilled(Correction):
    """Distances to two models that are constants: as sent, and as it is."""

    name = "distilled"

    def loss(self, step: Step) -> Tensor:
        sent, now = (step.at(leaves).logits for leaves in (step.anchor, step.params))
        here = step.out.logits
        return weighted_mean((here - sent).square().sum(1) + (here - now / 2).square().sum(1), step.batch)


@dataclass(frozen=True)
class Remembering(Correction):
    """Stays near its last model; before the first there is none."""

    name = "remembering"

    def init_client(self, shared: Leaves) -> Tree:
        return zeros(shared)

    def loss(self, step: Step) -> Tensor:
        return 0.1 * sqnorm(sub(step.params, dict(step.state)))

    def finish(self, end: End) -> tuple[Tree, Tree]:
        return end.params, {}


class Shifted(Remembering):
    """Its memory of closed leaves is neither what it was nor the model."""

    def finish(self, end: End) -> tuple[Tree, Tree]:
        return scale(2.0, end.params), {}


class Plain(Correction):
    """Not a dataclass: no two are equal."""

    name = "plain"


FAULTS: dict[str, Callable[[], Finding]] = {
    "momentum on itself": partial(resuming.resumes, having(OnItself())),
    "the first update on itself": partial(resuming.resumes, having(FirstUpdate())),
    "a count in its module": partial(resuming.resumes, having(InItsModule())),
    "detached": partial(differences.finite_differences, having(Detached(0.3))),
    "one leaf detached": partial(differences.finite_differences, having(OneLeaf(0.01))),
    "memory of closed leaves": partial(frozen_units.never_opened, having(Shifted())),
}


@pytest.mark.parametrize("name", FAULTS)
def test_a_wrong_method_is_caught(name: str) -> None:
    finding = FAULTS[name]()
    assert not finding.passed, finding.detail
    assert finding.error is None or finding.error > 1e-6


def test_the_failed_resume_names_what_differs_and_why() -> None:
    detail = resuming.resumes(having(InItsModule())).detail
    assert "sequential: server/" in detail
    assert "outside its states" in detail


RIGHT = {
    "steps by the round": having(ByRound()),
    "proximal": fedprox(0.3),
    "constants are held": having(Distilled()),
    "constants are held where a client keeps leaves": having(
        Distilled(), base=replace(fedavg(), shared=body)
    ),
    "its last model, first zeros": having(Remembering()),
    "control variates of the body": replace(scaffold(), shared=body),
    "the last unit closed": replace(fedavg(), schedule=FixLast(1)),
    "a unit that opens in round two": replace(fedavg(), schedule=Thaw((0, 2))),
}


@pytest.mark.parametrize("name", RIGHT)
def test_a_right_method_passes_everything(name: str) -> None:
    rows = [row_of(check) for check in property_checks(name, RIGHT[name])]
    assert {row.kind for row in rows} >= {"reduction", "engines", "frozen", "resume", "value"}
    assert not [row for row in rows if not row.passed]


def test_a_method_that_is_no_value_is_told_what_to_do() -> None:
    finding = is_value(having(Plain()))
    assert not finding.passed
    assert "make its parts frozen dataclasses" in finding.detail


def test_only_a_gradient_without_hooks_is_taken_by_finite_differences() -> None:
    assert differences.has_objective(fedprox())
    assert not differences.has_objective(feddyn())
    assert not differences.has_objective(having(Proximal(0.1), *scaffold().corrections))


def test_an_objective_with_a_part_held_on_purpose_is_not_for_finite_differences() -> None:
    """FedROD's personal head has no gradient below it: why CONSTANTS names it."""
    assert "fedrod" in CONSTANTS
    assert not differences.finite_differences(fedrod()).passed


def test_finite_differences_are_far_more_exact_than_their_tolerance() -> None:
    finding = differences.finite_differences(fedprox(0.3))
    assert finding.error is not None
    assert finding.error < differences.TOLERANCE / 1000


def test_momentum_is_used_where_it_is_taken() -> None:
    assert takes_momentum(fedavg())
    assert not takes_momentum(scaffold())
