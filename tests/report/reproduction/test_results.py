"""docs/results: its pages and the README's table agree with the records."""

import re
from dataclasses import replace
from pathlib import Path
from statistics import mean

import pytest

from kedge.cli.actions.reproduce import measured
from kedge.report.reproduction.index import write_pages
from kedge.report.reproduction.values import overview
from kedge.reproduce.measured import Measured
from kedge.reproduce.paper import names
from kedge.reproduce.plan import table_of
from kedge.reproduce.records import SUFFIX, read_records

ROOT = Path(__file__).parents[3]
RESULTS = ROOT / "docs/results"
WRITE_AGAIN = "write the pages again with: kedge reproduce fedbug-table1 --render --out docs/results"


@pytest.fixture(scope="module")
def tables() -> list[tuple]:  # type: ignore[type-arg]
    records = read_records(RESULTS)
    return [measured(table_of(name, {}), records, "full", Path()) for name in names()]


def pages(folder: Path) -> dict[str, str]:
    return {file.name: file.read_text(encoding="utf-8") for file in folder.glob("*.md")}


@pytest.mark.slow
def test_the_pages_are_made_of_the_records(tables: list, tmp_path: Path) -> None:  # type: ignore[type-arg]
    write_pages(tmp_path, tables)
    assert pages(RESULTS) == pages(tmp_path), WRITE_AGAIN


def test_every_record_is_of_a_run_that_its_table_asks_for(tables: list) -> None:  # type: ignore[type-arg]
    """Otherwise a change of kedge has changed the run's identity, and the record no longer counts."""
    used = {(one.table, one.key) for found, _ in tables for one in found.records}
    assert {(one.table, one.key) for one in read_records(RESULTS)} <= used


def test_the_note_on_exchanged_blocks_is_what_the_records_show(tables: list) -> None:  # type: ignore[type-arg]
    """Table 2 of FedBug: the runs at 1 % agree with the numbers that are printed under 10 %."""
    found = next(found for found, _ in tables if found.paper.name == "fedbug-table2")
    few, many = "1 % of the clients a round", "10 % of the clients a round"
    note = next(note for note in found.paper.notes if "exchange" in note)
    assert (
        f"{mean_distance(found, few, many):.2f} points from the 32 numbers that are printed under 10 %"
        in note
    )
    assert f"{mean_distance(found, few, few):.2f} points from those under 1 %" in note
    assert f"{mean_distance(found, many, few):.2f} points from the numbers printed under 1 %" in note
    assert f"{mean_distance(found, many, many):.2f} from those under 10 %" in note
    fedexp = mean_distance(found, many, few, "FedExP")
    assert f"{fedexp:.2f} points above the numbers under 1 %" in note


def mean_distance(found: Measured, block: str, printed: str, method: str = "") -> float:
    """The mean distance of the numbers measured in `block` from those printed in the block `printed`."""
    names = [name for name in found.by_name if name[0] == block and name[2].startswith(method)]
    names = [name for name in names if "FedDecorr" not in name[2]]
    assert len(names) == (8 if method else 32)
    pairs = [(found.by_name[name].mean, found.by_name[printed, *name[1:]].entry.value) for name in names]
    return mean(
        abs(measured - value) for measured, value in pairs if measured is not None and value is not None
    )


def test_records_are_small() -> None:
    """A few kilobytes a run: histories and metrics, no models."""
    for file in RESULTS.glob(f"*/*{SUFFIX}"):
        assert file.stat().st_size < 20_000 * len(file.read_text().splitlines())


def test_the_readme_has_the_tables_that_are_measured(tables: list) -> None:  # type: ignore[type-arg]
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    block = re.search(r"<!-- results -->\n(.*?)<!-- end -->", text, flags=re.DOTALL)
    assert block
    rows = [[cell.strip() for cell in line.strip("| ").split(" | ")] for line in block[1].splitlines()[2:]]
    expected = [
        [
            f"[{row['source'].partition(';')[0]}](docs/results/{row['name']}.md)",
            f"{row['measured']} of {row['places']}",
            f"{row['mean_absolute_difference']:.2f}",
        ]
        for row in overview(tables)
        if row["measured"] and row["mean_absolute_difference"] is not None
    ]
    assert rows == expected


@pytest.mark.slow
def test_a_changed_record_changes_the_page(tmp_path: Path) -> None:
    name = "fedbug-table1"
    first, *others = read_records(RESULTS)
    wrong = replace(first, history={**first.history, "all.global.accuracy": ((300, 0.1),)})
    write_pages(tmp_path, [measured(table_of(name, {}), [wrong, *others], "full", Path())])
    assert pages(tmp_path)[f"{name}.md"] != pages(RESULTS)[f"{name}.md"]
