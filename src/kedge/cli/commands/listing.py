"""kedge list: methods, models, datasets and everything else that has a name."""

from typing import Annotated

import typer

from kedge.cli import completion
from kedge.cli.errors import report_errors
from kedge.cli.options import Debug, Json
from kedge.core.errors import RequestError, nearest

KINDS = (
    "methods", "schedules", "rules", "models", "datasets", "partitions", "optimizers", "protocols",
    "experiments", "engines",
)  # fmt: skip


@report_errors
def command(
    kind: Annotated[
        str,
        typer.Argument(
            help=f"{', '.join(KINDS)}. Default: all of them.", autocompletion=completion.one_of(*KINDS)
        ),
    ] = "",
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """List the names that an experiment may use: methods, models, datasets and more.

    With a KIND, the table has all arguments.
    """
    if kind and kind not in KINDS:
        raise RequestError(
            f"kedge list {kind}: no such kind.{nearest(kind, KINDS)} Allowed: {', '.join(KINDS)}."
        )
    from kedge.cli.actions.listing import print_kinds

    print_kinds((kind,) if kind else KINDS, as_json)
