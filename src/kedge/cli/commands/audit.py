"""kedge audit: check methods against published numbers, closed forms and plain PyTorch."""

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
            help="Names of methods and measurements, such as feddyn, fedbug+scaffold or drift. Your own "
            "method as my_file.py:factory or package.module:factory. Default: all of kedge.",
            autocompletion=completion.methods,
        ),
    ] = None,
    objective: Annotated[
        str | None,
        typer.Option(
            help="The local objective of your own method, as my_file.py:function. The function receives "
            "f(w), w, the anchor and a dict (see kedge.audit.references.objectives) and returns the value "
            "that clients minimize. The audit compares its gradient with the one that the method used."
        ),
    ] = None,
    details: Annotated[bool, typer.Option("--details", help="Print one line for each check.")] = False,
    html: Annotated[
        Path | None, typer.Option(help="Also write all checks with their details as one HTML page.")
    ] = None,
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Check methods against published numbers, closed forms and plain PyTorch. Exit code 1 if one fails."""
    if html is not None and (html.is_dir() or not html.parent.is_dir()):
        raise RequestError(f"--html {html}: need the name of a file in an existing folder.")
    from kedge.audit.audit import plan_audit, run_check
    from kedge.cli.actions.audit import Report, print_json_report, print_report, with_progress, write_page

    with redirect_stdout(sys.stderr):  # the user's own code may print, but not into the result
        plan = plan_audit(methods, objective)
        report = Report(plan, [run_check(check) for check in with_progress(plan.checks)])
    if html is not None:
        write_page(report, html)
    if as_json:
        print_json_report(report)
    else:
        print_report(report, details, html)
    if report.failed:
        raise typer.Exit(1)
