"""The audit: every check of the methods asked for, one row each, whatever happens."""

import math
from collections.abc import Sequence

from kedge.audit.checks import derived, oracles, reduced
from kedge.audit.finding import Check, Row
from kedge.audit.methods import parts
from kedge.core.errors import RequestError, nearest


def row_of(check: Check) -> Row:
    """The check's row; one that raises has failed."""
    try:
        passed, error, detail = check.look()
    except Exception as failure:
        passed, error, detail = False, None, f"{type(failure).__name__}: {failure}"
    known = float(error) if error is not None and math.isfinite(error) else None
    return Row(check.method, check.name, check.kind, bool(passed), known, detail)


def chosen(methods: Sequence[str] | None) -> list[Check]:
    """The checks of these methods; fedbug chooses all that carry its schedule. None: all."""
    every = [*oracles(), *reduced(), *derived()]
    if methods is None:
        return every
    known = sorted({name for check in every for name in parts(check.method)})
    for name in methods:
        if name not in known:
            raise RequestError(
                f"no method {name!r} to audit.{nearest(name, known)} Allowed: {', '.join(known)}."
            )
    return [check for check in every if parts(check.method) & set(methods)]


def audit(methods: Sequence[str] | None = None) -> list[Row]:
    """Run the checks of these methods, or all: one row each, whatever happens."""
    return [row_of(check) for check in chosen(methods)]
