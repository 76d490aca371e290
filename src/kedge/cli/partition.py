"""kedge partition: who holds which classes, as a table and as pictures."""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer

from kedge.cli.options import Debug, Json, console, guarded, notes, show
from kedge.config.dealing import federation_of
from kedge.config.document import override, read, settings
from kedge.config.experiment import Experiment, resolve
from kedge.config.factories import factory_of
from kedge.config.schema import parameters
from kedge.core.errors import RequestError
from kedge.data.partitions.partition import PARTITIONS
from kedge.report.pages.partition import page
from kedge.report.partition import PartitionStatistics, document
from kedge.report.plots.partition import partition_figure
from kedge.report.plots.png import png as png_of
from kedge.report.plots.png import require_matplotlib
from kedge.report.tables.partition import amounts, headline, partition_table, verdict
from kedge.running.folders.folder import write

NATURAL = "The number is about labels; natural clients may differ in their features as well."


@guarded
def command(
    experiment: Annotated[str, typer.Argument(help="A TOML file, or a shipped experiment by name.")],
    sets: Annotated[
        list[str], typer.Option("--set", help="Any key of the config: --set partition.alpha=0.3.")
    ] = [],  # noqa: B006
    seed: Annotated[int | None, typer.Option(help="The random seed.")] = None,
    out: Annotated[
        Path | None, typer.Option(help="A folder to write partition.png and partition.html into.")
    ] = None,
    png: Annotated[Path | None, typer.Option(help="Draw the picture into this PNG.")] = None,
    html: Annotated[
        Path | None, typer.Option(help="Draw it into this page, with values to point at; opens anywhere.")
    ] = None,
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Show who holds which classes, how many samples, and how different clients are; nothing is trained."""
    files = places(out, png, html)
    values = settings(sets) | ({} if seed is None else {"seed": seed})
    chosen = resolve(override(read(experiment), values))
    found = statistics_of(chosen)
    lines = [amounts(found), *verdict(found)]
    if chosen.partition["name"] == "natural":
        lines.append(NATURAL)
    if files:
        contents = {
            "png": lambda: png_of(partition_figure(found)),
            "html": lambda: page(found, lines).encode(),
        }
        for kind, path in files.items():
            save(path, contents[kind](), kind)
    if as_json:
        written = {kind: str(files[kind]) if kind in files else None for kind in ("png", "html")}
        show({"experiment": chosen.name, **document(found), **written})
        return
    screen = console()
    screen.print(headline(found), style="bold", markup=False, highlight=False, soft_wrap=True)
    screen.print(partition_table(found))
    screen.print()
    for line in lines[:2]:
        screen.print(line, markup=False, highlight=False, soft_wrap=True)
    notes(lines[2:])
    for path in files.values():
        screen.print(f"written: {path}", markup=False, highlight=False, soft_wrap=True)


def places(out: Path | None, png: Path | None, html: Path | None) -> dict[str, Path]:
    """The files to write, checked before any work."""
    if out and (png or html):
        raise RequestError(f"--out {out} names both files: leave --png and --html out, or --out.")
    there = next((p for p in (out, *out.parents) if p.exists()), None) if out else None
    if there and not there.is_dir():
        raise RequestError(f"--out {out}: {there} is a file; name a folder, or use --png and --html FILE.")
    files = {"png": out / "partition.png", "html": out / "partition.html"} if out else {}
    for kind, path in (("png", png), ("html", html)):
        if path is None:
            continue
        if path.suffix != f".{kind}" or path.is_dir() or not path.parent.is_dir():
            raise RequestError(
                f"--{kind} {path}: need a file's name that ends in .{kind}, in a folder that exists."
            )
        files[kind] = path
    if "png" in files:
        require_matplotlib()
    return files


def statistics_of(experiment: Experiment) -> PartitionStatistics:
    """Statistics of the partition that `kedge run` would use."""
    federation = federation_of(experiment)
    labels, classes = federation.pool.y.numpy(), federation.classes
    counts = np.array([np.bincount(labels[own], minlength=classes) for own in federation.clients])
    tests = np.array([len(own) for own in federation.local_tests])
    return PartitionStatistics(
        dataset=experiment.data["name"],
        partition=called(experiment.partition),
        seed=experiment.seed,
        counts=counts,
        tests=tests,
        unassigned=len(labels) - int(counts.sum()) - int(tests.sum()),
    )


def called(partition: Mapping[str, Any]) -> str:
    """'dirichlet(clients=20, alpha=0.3)': a partition with the arguments that are not its defaults."""
    known = parameters(factory_of("partition", PARTITIONS, partition["name"]))
    told = {k: v for k, v in partition.items() if k != "name" and v != known[k][1].default}
    arguments = ", ".join(f"{k}={v}" for k, v in told.items())
    return f"{partition['name']}({arguments})" if told else str(partition["name"])


def save(path: Path, content: bytes, kind: str) -> None:
    """Write a file, or say where it cannot be."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write(path, content)
    except OSError as error:
        raise OSError(
            f"{path} cannot be written: {error.strerror or error}. Name another place: --{kind} FILE."
        ) from error
