"""The audit: select the checks of methods, and run them."""

import math
from collections.abc import Sequence
from typing import NamedTuple

from kedge.audit.check import Check, CheckResult
from kedge.audit.formulas import formula
from kedge.audit.own_method import is_own_method, load_own_methods
from kedge.audit.registry.checks import LAST, all_checks
from kedge.audit.registry.methods import AUDITED, names_of
from kedge.core.errors import RequestError, nearest


class AuditPlan(NamedTuple):
    """The checks that an audit will run."""

    checks: list[Check]  # sorted by method
    formulas: dict[str, str]  # by method
    notes: list[str]  # properties that cannot be checked, and the reasons


def plan_audit(methods: Sequence[str] | None = None, objective: str | None = None) -> AuditPlan:
    """The checks of `methods`, kedge's by name and the user's own by file; by default of all of kedge's.

    `objective` names a function that computes the local objective of the user's method.
    """
    names = list(dict.fromkeys(methods or ()))
    own_methods = load_own_methods([name for name in names if is_own_method(name)], objective)
    built_in = [name for name in names if not is_own_method(name)]
    checks = checks_of(built_in) if built_in or not names else []
    formulas = {check.method: formula(check.method) for check in checks}
    for method in own_methods:
        checks, formulas = [*checks, *method.checks], {**formulas, method.name: method.formula}
    return AuditPlan(checks, formulas, [method.note for method in own_methods if method.note])


def checks_of(methods: Sequence[str] | None) -> list[Check]:
    """The checks of kedge's methods with the names `methods`, or of all methods.

    The name of a schedule, such as `fedbug`, includes the methods under this schedule.
    """
    checks = sort_by_method(all_checks())
    if not methods:
        return checks
    known = sorted({name for check in checks for name in names_of(check.method)})
    for name in methods:
        if name not in known:
            raise RequestError(
                f"no method {name!r} to audit.{nearest(name, known)} Allowed: {', '.join(known)}; "
                "your own as my_file.py:factory or package.module:factory."
            )
    return [check for check in checks if names_of(check.method) & set(methods)]


def sort_by_method(checks: Sequence[Check]) -> list[Check]:
    """The checks sorted: methods in the registry's order, schedules, schedules over methods, measurements."""
    order = list(dict.fromkeys([*AUDITED, *(check.method for check in checks)]))

    def position(check: Check) -> tuple[bool, bool, int]:
        return check.method in LAST, "+" in check.method, order.index(check.method)

    return sorted(checks, key=position)


def run_check(check: Check) -> CheckResult:
    """Run one check. A check that raises an exception has failed."""
    try:
        passed, error, detail = check.run()
    except Exception as exception:
        passed, error, detail = False, None, f"{type(exception).__name__}: {exception}"
    finite = float(error) if error is not None and math.isfinite(error) else None
    return CheckResult(check.method, check.name, check.kind, bool(passed), finite, detail)


def audit(methods: Sequence[str] | None = None, objective: str | None = None) -> list[CheckResult]:
    """Run all checks of `methods`; a failed check does not stop the others."""
    return [run_check(check) for check in plan_audit(methods, objective).checks]
