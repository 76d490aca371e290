"""Figures of runs, drawn from their histories into one folder."""

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from kedge.cli.output import print_json, print_line, print_notes
from kedge.core.errors import RequestError, nearest
from kedge.report.plots.drift import FIGURES, Figure
from kedge.report.runs import Run
from kedge.running.folders.folder import write


class Drawn(NamedTuple):
    """Files by the name of their figure, and for each figure left out the reason."""

    written: dict[str, Path]
    left_out: dict[str, str]


def chosen_figures(names: Sequence[str]) -> Sequence[Figure]:
    """The figures with these names, or all figures if there are no names."""
    known = {figure.name: figure for figure in FIGURES}
    for name in names:
        if name not in known:
            raise RequestError(
                f"--figure {name}: no such figure.{nearest(name, known)} Allowed: {', '.join(known)}."
            )
    return [known[name] for name in dict.fromkeys(names)] or FIGURES


def draw_figures(runs: Sequence[Run], figures: Sequence[Figure], out: Path) -> Drawn:
    """Draw each figure that the histories allow into a PNG of the folder `out`."""
    drawn = Drawn({}, {})
    for figure in figures:
        content = figure.draw(runs)
        if content is None:
            drawn.left_out[figure.name] = figure.missing
            continue
        out.mkdir(parents=True, exist_ok=True)
        path = out / f"{figure.name}.png"
        write(path, content)
        drawn.written[figure.name] = path
    return drawn


def print_figures(runs: Sequence[Run], drawn: Drawn, as_json: bool) -> None:
    """Print the files written and the figures left out."""
    if as_json:
        files = {name: str(path) for name, path in drawn.written.items()}
        print_json({"runs": [str(run.folder) for run in runs], "figures": files, "left_out": drawn.left_out})
        return
    for path in drawn.written.values():
        print_line(f"written: {path}")
    print_notes(f"left out: {name}.png ({reason})" for name, reason in drawn.left_out.items())
