"""Every method has every property that the audit checks for all methods."""

import pytest
from tests.contract.algorithms import ALGORITHMS, OUTSIDE

from kedge.audit.check import Check
from kedge.audit.registry.every_method import PROPERTIES, property_checks

CHECKS = [check for name, algorithm in ALGORITHMS.items() for check in property_checks(name, algorithm)]
# Together these methods use every hook, every kind of memory and every way to share a part of the model.
QUICK = {"fedavg", "scaffold", "fedtr", "fedrod", "fedper", "fedbug+feddyn", "moon(strong)"}
QUICKEST = {"scaffold", "fedtr", "fedper", "fedbug+feddyn"}  # the methods of `make check`


def case(check: Check) -> object:
    """A test case: quick, thorough or slow, by its method."""
    mark = pytest.mark.thorough if check.method in QUICK else pytest.mark.slow
    quickest = OUTSIDE or check.method in QUICKEST
    return pytest.param(check, id=f"{check.method}-{check.name}", marks=() if quickest else mark)


@pytest.mark.parametrize("check", [case(check) for check in CHECKS])
def test_method_has_property(check: Check) -> None:
    finding = check.run()
    assert finding.passed, finding.detail


def test_every_property_is_tested_on_a_quick_method() -> None:
    quick = {check.name for check in CHECKS if OUTSIDE or check.method in QUICKEST}
    missing = {one.name for one in PROPERTIES} - quick
    assert not missing or OUTSIDE


def test_methods_are_different_values() -> None:
    assert len(set(ALGORITHMS.values())) == len(ALGORITHMS)
