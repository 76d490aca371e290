"""The audit catches deliberately wrong variants of every method, each by the check that is for it.

The variants are in the folder wrong: mistakes that the specification lists, most from published code.
"""

import inspect
from collections.abc import Callable
from functools import partial
from types import ModuleType
from typing import Any

import pytest
from tests.oracle.wrong import (
    client_terms,
    drift_corrections,
    every_method,
    fedtr,
    moon,
    personalization,
    server_rules,
    switching,
    theory,
)
from tests.oracle.wrong.every_method import WRONG_METHODS
from tests.quick import every

from kedge.audit.audit import checks_of, run_check
from kedge.audit.registry.every_method import PROPERTIES, property_checks

TABLES = (client_terms, drift_corrections, fedtr, moon, personalization, server_rules, switching, theory)
WRONG = {name: check for table in TABLES for name, check in table.WRONG.items()}
HARMLESS = {name: check for table in TABLES for name, check in table.HARMLESS.items()}


@pytest.mark.parametrize("table", [*TABLES, every_method], ids=lambda table: table.__name__)
def test_a_wrong_variant_overrides_only_hooks_that_exist(table: ModuleType) -> None:
    """A hook that was renamed in kedge would leave the variant right."""
    own = [c for c in vars(table).values() if inspect.isclass(c) and c.__module__ == table.__name__]
    for variant in (c for c in own if c.__mro__[1] is not object and not issubclass(c, tuple)):
        hooks = {name for name, value in vars(variant).items() if inspect.isfunction(value)}
        inherited = {name for base in variant.__mro__[1:] for name in vars(base)}
        assert hooks <= inherited, variant


@pytest.mark.slow
@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_variant_is_caught(name: str) -> None:
    finding = WRONG[name]()
    assert not finding.passed, finding.detail


@pytest.mark.parametrize("name", HARMLESS)
def test_a_wrong_variant_passes_where_it_does_no_harm(name: str) -> None:
    """A check fails because of the mistake, and not for every variant."""
    finding = HARMLESS[name]()
    assert finding.passed, finding.detail


@pytest.mark.parametrize("name", every(4, WRONG_METHODS))
def test_a_wrong_method_is_caught_by_the_properties_that_are_for_it(name: str) -> None:
    wrong = WRONG_METHODS[name]
    checks = [check for check in property_checks(name, wrong.algorithm) if check.name in wrong.failing]
    rows = [run_check(check) for check in checks]
    assert {row.check for row in rows if not row.passed} == set(wrong.failing)


def test_every_property_catches_a_wrong_method() -> None:
    caught = {name for wrong in WRONG_METHODS.values() for name in wrong.failing}
    assert caught == {one.name for one in PROPERTIES}


def function_of(check: Callable[..., Any]) -> Callable[..., Any]:
    """The function that a partial calls."""
    return function_of(check.func) if isinstance(check, partial) else check


# Checks without a wrong variant here: numbers of measurements and of the protocol, methods that equal another
# method for a special argument, and `agrees_with_plain_modules`, for which test_moon.py changes the kernel.
NO_VARIANT = {
    "clusters", "communication", "correlations", "cosines", "dirichlet_cuts", "diversity", "fedavg",
    "fedavg_weight_decay", "fedbug_without_ratio", "feddyn_of_equal_sizes", "fedprox_without_mu",
    "diversity_in_history", "updated_parameters_literal", "lr_decay", "updated_parameters", "participation",
    "agrees_with_plain_modules", "switching", "tensor", "multiply_adds",
}  # fmt: skip


def test_every_check_of_a_method_catches_a_wrong_variant() -> None:
    general = {one.name for one in PROPERTIES}
    checks = {function_of(check.run).__name__ for check in checks_of(None) if check.name not in general}
    catching = {function_of(check).__name__ for check in WRONG.values()}
    assert checks - catching == NO_VARIANT
