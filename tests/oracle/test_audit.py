"""The audit's checks of single methods, one test each, and the audit as a whole."""

import math

import pytest
from tests.quick import METHODS

import kedge.audit.audit as audit_module
from kedge.audit.audit import audit, checks_of, run_check
from kedge.audit.check import KINDS, Check, CheckResult
from kedge.audit.finding import Finding, Pair, compare_numbers
from kedge.audit.formulas import SEPARATOR, first_formula, formula
from kedge.audit.references.limit_points import NO_LIMIT
from kedge.audit.registry.checks import LAST
from kedge.audit.registry.every_method import EXEMPT, PROPERTIES
from kedge.audit.registry.methods import AUDITED
from kedge.audit.summary import summary
from kedge.core.errors import RequestError

CHECKS = checks_of(None)


# The properties of every method are tested by tests/contract/test_methods.py.
ABOUT_ONE_METHOD = [check for check in CHECKS if check.name not in {one.name for one in PROPERTIES}]
LONG = {
    "quadratic": METHODS,
    "reduction": METHODS,
}  # kinds of checks, and their quick methods


def case(check: Check) -> object:
    """A test case; `make check` leaves out a long check of most methods."""
    marks = () if check.method in LONG.get(check.kind, {check.method}) else pytest.mark.thorough
    return pytest.param(check, id=f"{check.kind}-{check.method}-{check.name}", marks=marks)


@pytest.mark.parametrize("check", [case(check) for check in ABOUT_ONE_METHOD])
def test_method_passes_its_check(check: Check) -> None:
    row = run_check(check)
    assert row.passed, row.detail
    assert row.detail


def test_every_check_has_a_name_of_its_own() -> None:
    assert len({(c.method, c.name) for c in CHECKS}) == len(CHECKS)


def test_every_method_is_checked_in_every_way() -> None:
    for method in AUDITED:
        kinds = {c.kind for c in CHECKS if c.method == method}
        names = {c.name for c in CHECKS if c.method == method} | EXEMPT.get(method, set())
        assert {one.name for one in PROPERTIES if one.applies(AUDITED[method])} <= names
        assert kinds >= {"reduction", "gradient", "engines", "frozen", "resume", "value"}, method
        assert ("quadratic" in kinds) != (method in NO_LIMIT), method
    assert set(NO_LIMIT) <= set(AUDITED)


def test_the_gradient_of_a_method_without_gradient_hooks_is_also_taken_by_finite_differences() -> None:
    twice = {c.method for c in CHECKS if c.name == "finite differences"}
    assert {"fedavg", "fedprox", "feddecorr", "fedntd", "fedbug+fedprox"} <= twice
    assert not {"feddyn", "scaffold", "feddc"} & twice
    assert set(AUDITED) == {c.method for c in CHECKS if c.name == "closed form"}


def test_the_checks_of_a_method_stand_together() -> None:
    """Methods, then schedules, then schedules over methods, then measurements."""
    methods = [c.method for c in CHECKS]
    order = list(dict.fromkeys(methods))
    assert methods == sorted(methods, key=order.index)
    assert order[:2] == ["fedavg", "fedprox"]
    assert order.index("fednova") < order.index("fedbug") < order.index("fedbug+fedavg")
    first = order.index("protocol")
    assert {"drift", "features"} <= set(order[first:]) <= set(LAST)


@pytest.mark.slow
def test_audit_takes_methods_and_gives_rows() -> None:
    rows = audit(["protocol"])
    assert {row.method for row in rows} == {"protocol"}
    assert all(row.passed for row in rows)


def test_a_name_chooses_every_method_it_is_part_of() -> None:
    assert {c.method for c in checks_of(["feddyn"])} == {"feddyn", "feddyn(data)", "fedbug+feddyn"}
    assert {c.method for c in checks_of(["fedbug+feddyn"])} == {"fedbug+feddyn"}
    assert {"fedbug", "fedbug+fedavg", "fedbug+scaffold"} <= {c.method for c in checks_of(["fedbug"])}


def test_unknown_method_is_refused_with_the_nearest_name() -> None:
    with pytest.raises(RequestError, match=r"feddin.*Did you mean 'feddyn'"):
        audit(["feddin"])


def test_a_check_that_raises_fails_and_the_rest_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken() -> Finding:
        raise ZeroDivisionError("no steps")

    def fine() -> Finding:
        return Finding(True, 0.0, "fine")

    checks = [Check("fedavg", "broken", "oracle", broken), Check("fedavg", "fine", "oracle", fine)]
    monkeypatch.setattr(audit_module, "checks_of", lambda methods: checks)  # plan_audit() calls it
    first, second = audit()
    assert not first.passed
    assert "ZeroDivisionError: no steps" in first.detail
    assert second.passed


@pytest.mark.parametrize("got", [1.1, math.nan, math.inf])
def test_a_number_that_is_off_or_no_number_fails(got: float) -> None:
    finding = compare_numbers([Pair("right", 2.0, 2.0), Pair("wrong", 1.0, got)], 1e-9)
    assert not finding.passed
    assert "wrong: expected 1" in finding.detail
    row = run_check(Check("fedavg", "number", "oracle", lambda: finding))
    assert row.error is None or math.isfinite(row.error)  # JSON has no infinity


def test_a_method_s_entry_counts_its_checks_and_failures_and_keeps_the_largest_error() -> None:
    rows = [
        CheckResult("a", "one", "oracle", True, 1e-16, ""),
        CheckResult("a", "two", "oracle", False, 2e-3, ""),
        CheckResult("a", "three", "frozen", True, None, ""),
        CheckResult("b", "one", "oracle", True, 0.0, ""),
    ]
    first, second = summary(rows, {"a": "w ← w", "b": ""})
    assert (first["method"], first["formula"], first["passed"]) == ("a", "w ← w", False)
    assert first["kinds"]["oracle"] == {"checks": 2, "failed": 1, "error": 2e-3}
    assert first["kinds"]["frozen"] == {"checks": 1, "failed": 0, "error": None}
    assert first["kinds"]["resume"] is None
    assert second["passed"]
    assert list(second["kinds"]) == list(KINDS)


def test_every_method_has_a_formula_and_it_is_its_module_s() -> None:
    for method in AUDITED:
        assert formula(method), method
    assert formula("fedprox") == "each client minimizes f_i(w) + μ/2 ‖w − wᵗ‖²"
    assert formula("feddyn(data)").startswith("Client: min f_i(w) − ⟨g_i, w⟩")
    assert "Server: γ = mean of the participants" in formula("feddyn")
    assert formula("fedadam").startswith("m ← β₁ m")
    assert formula("feddyn-no-h") == "FedDyn's clients with a server that only averages"
    assert formula("top-down+fedavg").endswith(f" units train{SEPARATOR}w ← w + Σ ω_i (w_i − w)")
    assert formula("protocol") == ""
    assert formula("drift").startswith("Σ_k ‖Δ_k‖² / ‖Σ_k Δ_k‖²")


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("Mine (Me and You, 2025): a word. Then w ← w + 1. And more = 2.", "Then w ← w + 1"),
        ("Mine: no sign in it. Nor here.", "Mine: no sign in it"),
        ("", ""),
    ],
)
def test_a_formula_is_the_first_sentence_with_a_sign_in_it(text: str, found: str) -> None:
    assert first_formula(text) == found
