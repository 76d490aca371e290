"""The data of each client: table, verdict and plots of a partition."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from kedge.cli.output import console, print_json, print_line, print_notes
from kedge.config.experiment import Experiment
from kedge.config.factories import factory_of
from kedge.config.federations import federation_of
from kedge.config.schema import parameters
from kedge.report.pages.partition import page
from kedge.report.partition import PartitionStatistics, document
from kedge.report.plots.partition import partition_figure
from kedge.report.plots.png import png as png_of
from kedge.report.tables.partition import amounts, headline, partition_table, verdict
from kedge.running.folders.folder import write

NATURAL = "The number is about labels; natural clients may differ in their features as well."


def partition_statistics(experiment: Experiment) -> PartitionStatistics:
    """Statistics of the partition that `kedge run` would use."""
    federation = federation_of(experiment)
    labels, classes = federation.pool.y.numpy(), federation.classes
    counts = np.array([np.bincount(labels[samples], minlength=classes) for samples in federation.clients])
    tests = np.array([len(test) for test in federation.local_tests])
    return PartitionStatistics(
        dataset=experiment.data["name"],
        partition=partition_text(experiment.partition),
        seed=experiment.seed,
        counts=counts,
        tests=tests,
        unassigned=len(labels) - int(counts.sum()) - int(tests.sum()),
    )


def partition_text(partition: Mapping[str, Any]) -> str:
    """A partition with the arguments that differ from their defaults: 'dirichlet(clients=20, alpha=0.3)'."""
    signature = parameters(factory_of("partition", partition["name"]))
    changed = {k: v for k, v in partition.items() if k != "name" and v != signature[k][1].default}
    arguments = ", ".join(f"{k}={v}" for k, v in changed.items())
    return f"{partition['name']}({arguments})" if changed else str(partition["name"])


def remarks_on(statistics: PartitionStatistics, experiment: Experiment) -> list[str]:
    """Lines below the table: amounts, how much clients differ, and the meaning of that number."""
    natural = [NATURAL] if experiment.partition["name"] == "natural" else []
    return [amounts(statistics), *verdict(statistics), *natural]


def draw_plots(statistics: PartitionStatistics, remarks: Sequence[str], files: Mapping[str, Path]) -> None:
    """Draw the partition into a PNG, into a page, or both."""
    contents = {
        "png": lambda: png_of(partition_figure(statistics)),
        "html": lambda: page(statistics, remarks).encode(),
    }
    for kind, path in files.items():
        save_file(path, contents[kind](), kind)


def print_partition(
    experiment: Experiment,
    statistics: PartitionStatistics,
    remarks: Sequence[str],
    files: Mapping[str, Path],
    as_json: bool,
) -> None:
    """Print the data of each client as a table, or as JSON."""
    if as_json:
        written = {kind: str(files[kind]) if kind in files else None for kind in ("png", "html")}
        print_json({"experiment": experiment.name, **document(statistics), **written})
        return
    print_line(headline(statistics), "bold")
    console().print(partition_table(statistics))
    console().print()
    for line in remarks[:2]:
        print_line(line)
    print_notes(remarks[2:])
    for path in files.values():
        print_line(f"written: {path}")


def save_file(path: Path, content: bytes, kind: str) -> None:
    """Write a file; if that fails, raise an OSError that names the option --`kind`."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write(path, content)
    except OSError as error:
        raise OSError(
            f"{path} cannot be written: {error.strerror or error}. Name another file: --{kind} FILE."
        ) from error
