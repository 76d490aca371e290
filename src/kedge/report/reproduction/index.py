"""The pages of a folder of results: one page per measured table, and a README.md that lists all tables.

The pages depend on the records only, not on when or where they are written.
"""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from kedge.core.errors import RequestError
from kedge.report.reproduction.page import overview_page, page
from kedge.report.reproduction.text import HEADS_NOTE
from kedge.report.reproduction.values import overview
from kedge.reproduce.claims import Judgment
from kedge.reproduce.measured import FULL, Measured
from kedge.running.folders.folder import write

INDEX = "README.md"
HEAD = "# Published tables, measured again"  # the first line; a README.md without it is never replaced
ABOUT = (
    "This folder holds the printed numbers of papers beside the numbers that kedge measures. Every measured "
    "table has a page. The folder with the table's name has the records of its runs, one file per sitting "
    "(one command on one machine)."
)
ADDING = (
    "To add a sitting, run `kedge reproduce NAME --out docs/results`, with the path of this folder. The "
    "command trains the runs that have no record yet and writes these pages again. To add a sitting of "
    "another machine, copy its files to the same place here."
)
TIME_NOTE = (
    "Time: of all sittings in which a run of the table was trained, to the last of these runs. Runs that two "
    "tables share are trained once and count in both."
)


def results_index(rows: Iterable[Mapping[str, Any]]) -> str:
    """The README.md of a folder of results: its purpose, how to add results, and the list of all tables."""
    listed = list(rows)
    scales = dict.fromkeys(row["scale"] for row in listed if row["scale"] != FULL)
    short = [f"Scale {scale}: the runs are shorter than the papers'." for scale in scales]
    paragraphs = [HEAD, ABOUT, ADDING, *short, f"{HEADS_NOTE} {TIME_NOTE}", overview_page(listed)]
    return "\n\n".join(paragraphs)


def check_pages(folder: Path) -> None:
    """Raise if the folder has a README.md that `write_pages` did not write."""
    file = folder / INDEX
    if file.is_file() and not file.read_text(encoding="utf-8").startswith(f"{HEAD}\n"):
        raise RequestError(
            f"{file} is not a list of results, and kedge would replace it. Choose another --out."
        )


def write_pages(folder: Path, tables: Iterable[tuple[Measured, Sequence[Judgment]]]) -> None:
    """Write NAME.md for every table with a measured number, and README.md.

    README.md lists all of `tables`, so these must not be only the tables with new numbers. A file whose text
    does not change is not written. Pages of other tables stay as they are.
    """
    check_pages(folder)
    folder.mkdir(parents=True, exist_ok=True)
    listed = list(tables)
    rows = overview(listed)
    for (measured, judgments), row in zip(listed, rows, strict=True):
        if row["measured"]:
            write_changed(folder / f"{row['name']}.md", page(measured, judgments))
    write_changed(folder / INDEX, results_index(rows))


def write_changed(file: Path, text: str) -> None:
    """Write `text` atomically, unless the file already has this text."""
    content = text.encode()
    if not file.is_file() or file.read_bytes() != content:
        write(file, content)
