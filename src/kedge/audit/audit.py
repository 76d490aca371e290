"""The audit: every check of the methods asked for, one row each, whatever happens."""

import math
from collections.abc import Sequence
from typing import NamedTuple

from kedge.audit.finding import Check, Row
from kedge.audit.formulas import formula
from kedge.audit.own_method import is_own, own_methods
from kedge.audit.registry.checks import LAST, derived, oracles, reduced
from kedge.audit.registry.methods import AUDITED, parts
from kedge.core.errors import RequestError, nearest


class Plan(NamedTuple):
    """What will be looked at."""

    checks: list[Check]  # by method
    formulas: dict[str, str]
    notes: list[str]  # what will not be, and why


def planned(methods: Sequence[str] | None = None, objective: str | None = None) -> Plan:
    """The checks of these methods, kedge's and users' own; None: all of kedge's."""
    names = list(dict.fromkeys(methods or ()))
    own = own_methods([name for name in names if is_own(name)], objective)
    ours = [name for name in names if not is_own(name)]
    checks = chosen(ours) if ours or not names else []
    formulas = {check.method: formula(check.method) for check in checks}
    for one in own:
        checks, formulas = [*checks, *one.checks], {**formulas, one.name: one.formula}
    return Plan(checks, formulas, [one.note for one in own if one.note])


def chosen(methods: Sequence[str] | None) -> list[Check]:
    """The checks of these methods of kedge; fedbug chooses all that carry its schedule. None: all."""
    every = ordered([*oracles(), *reduced(), *derived()])
    if not methods:
        return every
    known = sorted({name for check in every for name in parts(check.method)})
    for name in methods:
        if name not in known:
            raise RequestError(
                f"no method {name!r} to audit.{nearest(name, known)} Allowed: {', '.join(known)}; "
                "your own as my_file.py:factory or package.module:factory."
            )
    return [check for check in every if parts(check.method) & set(methods)]


def ordered(checks: Sequence[Check]) -> list[Check]:
    """By method: the registry's order, schedules, the two together, and last what no method owns."""
    order = list(dict.fromkeys([*AUDITED, *(check.method for check in checks)]))

    def place(check: Check) -> tuple[bool, bool, int]:
        return check.method in LAST, "+" in check.method, order.index(check.method)

    return sorted(checks, key=place)


def row_of(check: Check) -> Row:
    """The check's row; one that raises has failed."""
    try:
        passed, error, detail = check.look()
    except Exception as failure:
        passed, error, detail = False, None, f"{type(failure).__name__}: {failure}"
    known = float(error) if error is not None and math.isfinite(error) else None
    return Row(check.method, check.name, check.kind, bool(passed), known, detail)


def audit(methods: Sequence[str] | None = None, objective: str | None = None) -> list[Row]:
    """Run the checks of these methods, or all: one row each, whatever happens."""
    return [row_of(check) for check in planned(methods, objective).checks]
