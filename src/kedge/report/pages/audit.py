"""The audit as one HTML page that needs no network and no other file."""

from collections.abc import Mapping, Sequence
from typing import Any

from kedge.report.pages.template import render
from kedge.report.tables.audit import short_error

Row = Mapping[str, Any]

MEANINGS = {
    "oracle": "numbers worked out beforehand from the papers' equations, step by step and round by round",
    "reduction": "settings in which the method must equal another one, or plain SGD by torch.optim",
    "gradient": "the gradient a client uses, against autograd of the objective written out and against "
    "finite differences of its loss terms",
    "quadratic": "the point to which the method converges on quadratics, against the closed form",
    "engines": "clients one after another and all at once: the same numbers",
    "frozen": "leaves that do not train keep every bit",
    "resume": "a run that is stopped and resumed equals the uninterrupted run, bit for bit",
    "value": "the method pickles, compares, hashes and prints its hyper-parameters",
}


def page(
    methods: Sequence[Row], rows: Sequence[Row], notes: Sequence[str], versions: Mapping[str, str]
) -> str:
    """The page: verdict, table, and a list of checks below each method, open if one fails."""
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
