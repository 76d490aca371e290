"""The results of an audit, summed up by method and kind of check."""

from collections.abc import Mapping, Sequence
from typing import Any

from kedge.audit.check import KINDS, CheckResult


def summary(results: Sequence[CheckResult], formulas: Mapping[str, str]) -> list[dict[str, Any]]:
    """One entry for each method: its formula, whether all checks passed, and the counts by kind."""
    return [
        {
            "method": method,
            "formula": formulas[method],
            "passed": all(result.passed for result in results if result.method == method),
            "kinds": {
                kind: counts([r for r in results if (r.method, r.kind) == (method, kind)]) for kind in KINDS
            },
        }
        for method in dict.fromkeys(result.method for result in results)
    ]


def counts(results: Sequence[CheckResult]) -> dict[str, Any] | None:
    """Number of checks, number of failed checks and largest error; None without checks."""
    if not results:
        return None
    errors = [result.error for result in results if result.error is not None]
    failed = sum(not result.passed for result in results)
    return {"checks": len(results), "failed": failed, "error": max(errors, default=None)}
