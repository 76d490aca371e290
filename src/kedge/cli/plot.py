"""kedge plot: every figure that the histories of runs allow."""

from pathlib import Path
from typing import Annotated

import typer

from kedge.cli.options import Debug, Json, console, guarded, notes, show
from kedge.core.errors import RequestError, nearest
from kedge.report.plots.curves import OTHERWISE
from kedge.report.plots.drift import FIGURES
from kedge.report.plots.png import require_matplotlib
from kedge.report.runs import find_runs
from kedge.running.folders.folder import write


@guarded
def command(
    runs: Annotated[list[Path], typer.Argument(help="Folders of runs, or folders that hold such folders.")],
    out: Annotated[Path, typer.Option(help="The folder to write the PNGs into.")],
    figures: Annotated[
        list[str],
        typer.Option("--figure", help=f"Only this one; repeatable: {', '.join(f.name for f in FIGURES)}."),
    ] = [],  # noqa: B006
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Draw diversity, cosines, features, clients' accuracies and costs; what a history lacks is left out."""
    known = {figure.name: figure for figure in FIGURES}
    for name in figures:
        if name not in known:
            raise RequestError(
                f"--figure {name}: no such figure.{nearest(name, known)} Allowed: {', '.join(known)}."
            )
    there = next((p for p in (out, *out.parents) if p.exists()), None)
    if there and not there.is_dir():
        raise RequestError(f"--out {out}: {there} is a file; name a folder.")
    require_matplotlib(OTHERWISE)
    found = find_runs(runs)
    written: dict[str, str] = {}
    left: dict[str, str] = {}
    for figure in [known[name] for name in dict.fromkeys(figures)] or FIGURES:
        content = figure.draw(found)
        if content is None:
            left[figure.name] = figure.missing
            continue
        out.mkdir(parents=True, exist_ok=True)
        path = out / f"{figure.name}.png"
        write(path, content)
        written[figure.name] = str(path)
    if as_json:
        show({"runs": [str(run.folder) for run in found], "figures": written, "left_out": left})
        return
    for name in written.values():
        console().print(f"written: {name}", markup=False, highlight=False, soft_wrap=True)
    notes(f"left out: {name}.png ({why})" for name, why in left.items())
