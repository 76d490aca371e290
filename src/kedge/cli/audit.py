"""kedge audit: every method against its oracles."""

from typing import Annotated

import typer
from rich.table import Table

from kedge.audit.audit import audit
from kedge.cli.options import Debug, Json, console, guarded, show


@guarded
def command(
    methods: Annotated[list[str] | None, typer.Argument(help="Only these methods; without it, all.")] = None,
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Check every method against answers obtained another way; exit 1 if one check fails."""
    rows = audit(methods)
    failed = [row for row in rows if not row.passed]
    if as_json:
        show(
            {
                "passed": not failed,
                "checks": len(rows),
                "failed": len(failed),
                "rows": [row._asdict() for row in rows],
            }
        )
    else:
        table = Table(box=None, header_style="bold", pad_edge=False)
        for name in ("method", "kind", "check", "", "error"):
            table.add_column(name, justify="right" if name == "error" else "left")
        for row in rows:
            verdict = "[green]pass[/]" if row.passed else "[bold red]FAIL[/]"
            error = "" if row.error is None else f"{row.error:.1e}"
            table.add_row(row.method, row.kind, row.check, verdict, error)
            if not row.passed:
                table.add_row("", "", row.detail, "", "")
        console().print(table)
        console().print(f"\n{len(rows) - len(failed)} of {len(rows)} checks pass")
    if failed:
        raise typer.Exit(1)
