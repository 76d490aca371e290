"""Results of the audit: tables, a page, JSON, and a progress bar while it runs."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
from rich.table import Table
from rich.text import Text

from kedge.audit.audit import AuditPlan
from kedge.audit.check import Check, CheckResult
from kedge.audit.summary import summary
from kedge.cli.output import console, print_json
from kedge.report.pages.audit import page
from kedge.report.tables.audit import LEGEND, audit_table, failures, formula_table, kind_table
from kedge.running.folders.folder import write
from kedge.running.versions import versions


class Report(NamedTuple):
    """The checks of an audit and their results."""

    plan: AuditPlan
    rows: Sequence[CheckResult]

    @property
    def failed(self) -> int:
        """Number of failed checks."""
        return sum(not row.passed for row in self.rows)

    @property
    def methods(self) -> list[dict[str, Any]]:
        """One entry for each method."""
        return summary(self.rows, self.plan.formulas)

    @property
    def details(self) -> list[dict[str, Any]]:
        """One entry for each check."""
        return [row._asdict() for row in self.rows]


def write_page(report: Report, path: Path) -> None:
    """Write the report as one self-contained page."""
    write(path, page(report.methods, report.details, report.plan.notes, versions()).encode())


def print_json_report(report: Report) -> None:
    """Print the report as JSON."""
    print_json(
        {
            "passed": not report.failed,
            "checks": len(report.rows),
            "failed": report.failed,
            "notes": report.plan.notes,
            "methods": report.methods,
            "rows": report.details,
        }
    )


def print_report(report: Report, details: bool, html: Path | None) -> None:
    """Print the table of methods and the failed checks; with `details`, every check instead."""
    out = console()
    if details:
        out.print(check_table(report.rows))
    else:
        out.print(audit_table(report.methods, out.width))
        out.print(Text(LEGEND, "dim"))
        for table in (kind_table(report.methods), formula_table(report.methods)):
            out.print()
            out.print(table)
        for text in failures(report.details):
            out.print(text)
    for note in report.plan.notes:
        out.print(Text(f"\n{note}", "yellow"))
    out.print(f"\n{len(report.rows) - report.failed} of {len(report.rows)} checks pass")
    if html is not None:
        out.print(Text(f"page: {html}"), soft_wrap=True)


def check_table(rows: Sequence[CheckResult]) -> Table:
    """A table with a row for each check."""
    table = Table(box=None, header_style="bold", pad_edge=False)
    for name in ("method", "kind", "check", "", "error"):
        table.add_column(name, justify="right" if name == "error" else "left")
    for row in rows:
        verdict = Text("pass", "green") if row.passed else Text("FAIL", "bold red")
        error = "" if row.error is None else f"{row.error:.1e}"
        table.add_row(Text(row.method), row.kind, Text(row.check), verdict, error)
        if not row.passed:
            table.add_row("", "", Text(row.detail), "", "")
    return table


def with_progress(checks: Sequence[Check]) -> Iterator[Check]:
    """The checks one by one, with a progress bar if standard error is a terminal."""
    err = Console(stderr=True)
    columns = (BarColumn(20), MofNCompleteColumn(), TextColumn("{task.description}", markup=False))
    with Progress(*columns, console=err, transient=True, disable=not err.is_terminal) as progress:
        task = progress.add_task("", total=len(checks))
        for check in checks:
            progress.update(task, description=f"{check.method}, {check.kind}: {check.name}")
            yield check
            progress.advance(task)
