"""The audit as one HTML page that needs no network and no other file."""

from collections.abc import Mapping, Sequence
from typing import Any

from kedge.report.pages.template import render
from kedge.report.tables.audit import MEANINGS, short_error

Row = Mapping[str, Any]


def page(
    methods: Sequence[Row], rows: Sequence[Row], notes: Sequence[str], versions: Mapping[str, str]
) -> str:
    """The page: number of passed checks, table of methods, and a list of checks below each method."""
    by_method: dict[str, list[Row]] = {}
    for row in rows:
        by_method.setdefault(row["method"], []).append(row)
    return render(
        "audit.html",
        methods=methods,
        checks=by_method,
        meanings={kind: MEANINGS[kind] for kind in methods[0]["kinds"]},
        total=len(rows),
        failed=sum(not row["passed"] for row in rows),
        notes=notes,
        versions=versions,
        short_error=short_error,
    )
