"""The rows of an audit put together: one entry a method, one cell a kind of check."""

from collections.abc import Mapping, Sequence
from typing import Any

from kedge.audit.finding import KINDS, Row


def summary(rows: Sequence[Row], formulas: Mapping[str, str]) -> list[dict[str, Any]]:
    """One entry a method: its formula and, by kind, how many checks, how many failed, the largest error."""
    return [
        {
            "method": method,
            "formula": formulas[method],
            "passed": all(row.passed for row in rows if row.method == method),
            "kinds": {
                kind: tally([r for r in rows if (r.method, r.kind) == (method, kind)]) for kind in KINDS
            },
        }
        for method in dict.fromkeys(row.method for row in rows)
    ]


def tally(rows: Sequence[Row]) -> dict[str, Any] | None:
    """Checks of one method and kind, put together."""
    errors = [row.error for row in rows if row.error is not None]
    failed = sum(not row.passed for row in rows)
    return {"checks": len(rows), "failed": failed, "error": max(errors, default=None)} if rows else None
