"""kedge audit: every method against its oracles, and a user's own against all that can be asked of it."""

import sys
from collections.abc import Iterator, Sequence
from contextlib import redirect_stdout
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
from rich.table import Table
from rich.text import Text

from kedge.audit.audit import planned, row_of
from kedge.audit.finding import Check, Row
from kedge.audit.summary import summary
from kedge.cli.options import Debug, Json, console, guarded, show
from kedge.core.errors import RequestError
from kedge.report.pages.audit import page
from kedge.report.tables.audit import audit_table, failures, formula_table
from kedge.running.folders.folder import write
from kedge.running.versions import versions


@guarded
def command(
    methods: Annotated[
        list[str] | None,
        typer.Argument(help="Only these methods; your own as my_file.py:factory or package.module:factory."),
    ] = None,
    objective: Annotated[
        str | None,
        typer.Option(
            help="Your method's local objective written out, my_file.py:function. It is given f(w), w, "
            "anchor and what else is known (kedge.audit.references.objectives lists it); it returns "
            "what clients minimise."
        ),
    ] = None,
    details: Annotated[bool, typer.Option("--details", help="List every check.")] = False,
    html: Annotated[
        Path | None, typer.Option(help="Write the table as one page that needs no other.")
    ] = None,
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Check every method against answers obtained another way; exit 1 if one check fails."""
    if html is not None and (html.is_dir() or not html.parent.is_dir()):
        raise RequestError(f"--html {html}: need a file's name in a folder that exists.")
    with redirect_stdout(sys.stderr):  # what a user's own code prints is not the result
        plan = planned(methods, objective)
        found = [row_of(check) for check in watched(plan.checks)]
    table, rows = summary(found, plan.formulas), [row._asdict() for row in found]
    failed = sum(not row.passed for row in found)
    if html is not None:
        write(html, page(table, rows, plan.notes, versions()).encode())
    if as_json:
        show(
            {
                "passed": not failed,
                "checks": len(rows),
                "failed": failed,
                "notes": plan.notes,
                "methods": table,
                "rows": rows,
            }
        )
    else:
        out = console()
        if details:
            out.print(listed(found))
        else:
            out.print(audit_table(table, out.width))
            out.print()
            out.print(formula_table(table))
            for text in failures(rows):
                out.print(text)
        for note in plan.notes:
            out.print(Text(f"\n{note}", "yellow"))
        out.print(f"\n{len(rows) - failed} of {len(rows)} checks pass")
        if html is not None:
            out.print(Text(f"page: {html}"), soft_wrap=True)
    if failed:
        raise typer.Exit(1)


def listed(rows: Sequence[Row]) -> Table:
    """Every check by itself."""
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


def watched(checks: Sequence[Check]) -> Iterator[Check]:
    """The checks as they come, with a bar on standard error where that is a terminal."""
    err = Console(stderr=True)
    columns = (BarColumn(20), MofNCompleteColumn(), TextColumn("{task.description}", markup=False))
    with Progress(*columns, console=err, transient=True, disable=not err.is_terminal) as progress:
        task = progress.add_task("", total=len(checks))
        for check in checks:
            progress.update(task, description=f"{check.method}, {check.kind}: {check.name}")
            yield check
            progress.advance(task)
