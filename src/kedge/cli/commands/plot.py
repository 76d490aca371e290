"""kedge plot: every figure that the histories of runs allow."""

from pathlib import Path
from typing import Annotated

import typer

from kedge.cli import completion
from kedge.cli.errors import report_errors
from kedge.cli.options import Debug, Json, RunFolders, check_folder

FIGURES = (
    "diversity", "diversity-units", "cosine", "norms", "shift", "clusters", "frequency", "retained",
    "similarity", "clients", "cost",
)  # fmt: skip


@report_errors
def command(
    runs: RunFolders,
    out: Annotated[Path, typer.Option(help="The folder to write the PNGs into.")],
    figures: Annotated[
        list[str],
        typer.Option(
            "--figure",
            help=f"Only this figure: {', '.join(FIGURES)}. Repeatable.",
            autocompletion=completion.one_of(*FIGURES),
        ),
    ] = [],  # noqa: B006
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Draw diversity, cosines, features, clients' accuracies and costs, where the histories contain them."""
    from kedge.cli.actions.plot import chosen_figures, draw_figures, print_figures
    from kedge.report.plots.curves import OTHERWISE
    from kedge.report.plots.png import require_matplotlib
    from kedge.report.runs import find_runs

    chosen = chosen_figures(figures)
    check_folder("--out", out, "name a folder")
    require_matplotlib(OTHERWISE)
    found = find_runs(runs)
    print_figures(found, draw_figures(found, chosen, out), as_json)
