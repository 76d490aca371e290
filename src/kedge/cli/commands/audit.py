"""kedge audit: every method, or your own, compared with answers obtained another way."""

import sys
from contextlib import redirect_stdout
from pathlib import Path
from typing import Annotated

import typer

from kedge.cli import completion
from kedge.cli.errors import report_errors
from kedge.cli.options import Debug, Json
from kedge.core.errors import RequestError


@report_errors
def command(
    methods: Annotated[
        list[str] | None,
        typer.Argument(
            help="Only these methods. Your own method: my_file.py:factory or package.module:factory. "
            "Default: all methods.",
            autocompletion=completion.methods,
        ),
    ] = None,
    objective: Annotated[
        str | None,
        typer.Option(
            help="The local objective of your method, as my_file.py:function. The function gets f(w), w, the "
            "anchor and more (see kedge.audit.references.objectives) and returns the value that clients "
            "minimize."
        ),
    ] = None,
    details: Annotated[bool, typer.Option("--details", help="List every check.")] = False,
    html: Annotated[Path | None, typer.Option(help="Write the table as one self-contained page.")] = None,
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Check methods against answers obtained another way. Exit code 1 if a check fails."""
    if html is not None and (html.is_dir() or not html.parent.is_dir()):
        raise RequestError(f"--html {html}: need a file's name in a folder that exists.")
    from kedge.audit.audit import planned, row_of
    from kedge.cli.actions.audit import Report, print_json_report, print_report, with_progress, write_page

    with redirect_stdout(sys.stderr):  # the user's own code may print, but not into the result
        plan = planned(methods, objective)
        report = Report(plan, [row_of(check) for check in with_progress(plan.checks)])
    if html is not None:
        write_page(report, html)
    if as_json:
        print_json_report(report)
    else:
        print_report(report, details, html)
    if report.failed:
        raise typer.Exit(1)
