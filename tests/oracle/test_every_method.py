"""The properties of every method pass for right methods, and their messages say what to do."""

import pytest
from tests.oracle.wrong.every_method import RIGHT_METHODS, InItsModule, having

from kedge.algorithms import fedavg, feddyn, fedprox, fedrod, scaffold
from kedge.algorithms.fedprox import Proximal
from kedge.audit.audit import run_check
from kedge.audit.properties import finite_differences as differences
from kedge.audit.properties import resuming
from kedge.audit.properties.optimizers import takes_momentum
from kedge.audit.properties.values import is_value
from kedge.audit.registry.every_method import EXEMPT, property_checks
from kedge.core.correction import Correction


class Plain(Correction):
    """A correction that is not a dataclass, so that no two are equal."""

    name = "plain"


def test_the_failed_resume_names_what_differs_and_why() -> None:
    detail = resuming.resumed_run_is_equal(having(InItsModule())).detail
    assert "sequential: server/" in detail
    assert "outside its states" in detail


@pytest.mark.slow
@pytest.mark.parametrize("name", RIGHT_METHODS)
def test_a_right_method_passes_everything(name: str) -> None:
    rows = [run_check(check) for check in property_checks(name, RIGHT_METHODS[name])]
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
    """FedROD detaches the input of its personal head. EXEMPT names it therefore."""
    assert "fedrod" in EXEMPT
    assert not differences.gradient_matches_slopes(fedrod()).passed


def test_finite_differences_are_far_more_exact_than_their_tolerance() -> None:
    finding = differences.gradient_matches_slopes(fedprox(0.3))
    assert finding.error is not None
    assert finding.error < differences.TOLERANCE / 1000


def test_momentum_is_used_where_it_is_taken() -> None:
    assert takes_momentum(fedavg())
    assert not takes_momentum(scaffold())
