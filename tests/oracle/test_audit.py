"""The audit's rows, one test each, and the audit as a whole."""

import math

import pytest

import kedge.audit.audit as conduct
from kedge.audit.audit import audit, chosen, row_of
from kedge.audit.finding import Check, Finding, Pair, compared
from kedge.audit.methods import METHODS
from kedge.core.errors import RequestError

CHECKS = chosen(None)


@pytest.mark.parametrize("check", CHECKS, ids=[f"{c.kind}-{c.method}-{c.name}" for c in CHECKS])
def test_method_passes_its_check(check: Check) -> None:
    row = row_of(check)
    assert row.passed, row.detail
    assert row.detail


def test_every_check_has_a_name_of_its_own() -> None:
    assert len({(c.method, c.name) for c in CHECKS}) == len(CHECKS)


def test_every_method_is_checked_in_every_way() -> None:
    for method in METHODS:
        kinds = {c.kind for c in CHECKS if c.method == method}
        assert kinds >= {"gradient", "quadratic", "engines", "frozen", "value"}, method


def test_audit_takes_methods_and_gives_rows() -> None:
    rows = audit(["protocol"])
    assert {row.method for row in rows} == {"protocol"}
    assert all(row.passed for row in rows)


def test_a_name_chooses_every_method_it_is_part_of() -> None:
    assert {c.method for c in chosen(["feddyn"])} == {"feddyn", "feddyn(data)", "fedbug+feddyn"}
    assert {c.method for c in chosen(["fedbug+feddyn"])} == {"fedbug+feddyn"}
    assert {"fedbug", "fedbug+fedavg", "fedbug+scaffold"} <= {c.method for c in chosen(["fedbug"])}


def test_unknown_method_is_refused_with_the_nearest_name() -> None:
    with pytest.raises(RequestError, match=r"feddin.*Did you mean 'feddyn'"):
        audit(["feddin"])


def test_a_check_that_raises_fails_and_the_rest_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken() -> Finding:
        raise ZeroDivisionError("no steps")

    def fine() -> Finding:
        return Finding(True, 0.0, "fine")

    checks = [Check("fedavg", "broken", "oracle", broken), Check("fedavg", "fine", "oracle", fine)]
    monkeypatch.setattr(conduct, "chosen", lambda methods: checks)
    first, second = audit()
    assert not first.passed
    assert "ZeroDivisionError: no steps" in first.detail
    assert second.passed


@pytest.mark.parametrize("got", [1.1, math.nan, math.inf])
def test_a_number_that_is_off_or_no_number_fails(got: float) -> None:
    finding = compared([Pair("right", 2.0, 2.0), Pair("wrong", 1.0, got)], 1e-9)
    assert not finding.passed
    assert "wrong: expected 1" in finding.detail
    row = row_of(Check("fedavg", "number", "oracle", lambda: finding))
    assert row.error is None or math.isfinite(row.error)  # JSON has no infinity
