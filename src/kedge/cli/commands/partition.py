"""kedge partition: the classes and samples of each client, as a table and as plots."""

from pathlib import Path
from typing import Annotated

import typer

from kedge.cli.errors import report_errors
from kedge.cli.options import Debug, Experiment, Json, Seed, Sets, check_file, check_folder
from kedge.core.errors import RequestError
from kedge.report.plots.png import require_matplotlib


@report_errors
def command(
    experiment: Experiment,
    sets: Sets = [],  # noqa: B006
    seed: Seed = None,
    out: Annotated[
        Path | None, typer.Option(help="A folder to write partition.png and partition.html into.")
    ] = None,
    png: Annotated[Path | None, typer.Option(help="Draw the plot into this PNG.")] = None,
    html: Annotated[
        Path | None, typer.Option(help="Write an interactive page, which shows the value under the mouse.")
    ] = None,
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Show the classes and samples of each client and how much clients differ, without training."""
    files = output_files(out, png, html)
    from kedge.cli.actions.partition import draw_plots, partition_statistics, print_partition, remarks_on
    from kedge.cli.actions.training import read_document
    from kedge.config.experiment import resolve

    resolved = resolve(read_document(experiment, sets, seed))
    statistics = partition_statistics(resolved)
    remarks = remarks_on(statistics, resolved)
    draw_plots(statistics, remarks, files)
    print_partition(resolved, statistics, remarks, files, as_json)


def output_files(out: Path | None, png: Path | None, html: Path | None) -> dict[str, Path]:
    """The files to write, by kind. Raise if one of them cannot be written."""
    if out and (png or html):
        raise RequestError(f"--out {out} names both files: leave --png and --html out, or --out.")
    if out:
        check_folder("--out", out, "name a folder, or use --png and --html FILE")
    files = {"png": out / "partition.png", "html": out / "partition.html"} if out else {}
    for kind, path in (("png", png), ("html", html)):
        if path is not None:
            check_file(f"--{kind}", path, f".{kind}")
            files[kind] = path
    if "png" in files:
        require_matplotlib()
    return files
