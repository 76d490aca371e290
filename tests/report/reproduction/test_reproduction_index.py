"""The pages of a folder of results: they depend on the records only and never replace other files."""

import re
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest
from tests.report.reproduction.reproduced import mixed
from tests.reproduce.tables import fedbug

from kedge.core.errors import RequestError
from kedge.report.reproduction.index import check_pages, results_index, write_pages
from kedge.report.reproduction.page import page
from kedge.report.reproduction.values import overview
from kedge.reproduce.claims import Judgment, judge_claims
from kedge.reproduce.measured import Measured
from kedge.reproduce.paper import names
from kedge.reproduce.records import read_records, write_record

Tables = list[tuple[Measured, list[Judgment]]]


@cache
def tables() -> Tables:
    empty = fedbug(places=0)
    unmeasured = replace(empty, paper=replace(empty.paper, name="unmeasured"))
    return [(one, judge_claims(one)) for one in (fedbug(), mixed(), unmeasured)]


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@pytest.mark.slow
def test_there_is_a_page_for_every_table_with_a_number_and_a_list(tmp_path: Path) -> None:
    write_pages(tmp_path / "results", tables())
    found = contents(tmp_path / "results")
    assert found.keys() == {"README.md", "fedbug-table1.md", "small.md"}
    assert found["small.md"].decode() == page(mixed(), judge_claims(mixed()))
    assert found["README.md"].decode() == results_index(overview(tables()))


@pytest.mark.slow
def test_all_links_lead_to_something(tmp_path: Path) -> None:
    for record in mixed().records:
        write_record(tmp_path / record.table / "one.jsonl", record)
    assert len(read_records(tmp_path)) == len(mixed().records)
    write_pages(tmp_path, [(mixed(), judge_claims(mixed()))])
    links = [
        link for file in tmp_path.glob("*.md") for link in re.findall(r"\]\(([^)]*)\)", file.read_text())
    ]
    assert sorted(links) == ["small.md", "small/"]
    assert all((tmp_path / link).exists() for link in links)


def test_pages_written_again_elsewhere_are_the_same(tmp_path: Path) -> None:
    for name in ("first", "second"):
        write_pages(tmp_path / name, tables())
    assert contents(tmp_path / "first") == contents(tmp_path / "second")


def test_a_page_is_written_only_if_it_differs(tmp_path: Path) -> None:
    write_pages(tmp_path, tables())
    (tmp_path / "small.md").write_text("old")
    before = {path.name: path.stat().st_mtime_ns for path in tmp_path.iterdir()}
    nodes = {path.name: path.stat().st_ino for path in tmp_path.iterdir()}
    write_pages(tmp_path, tables())
    changed = {
        path.name
        for path in tmp_path.iterdir()
        if (path.stat().st_mtime_ns, path.stat().st_ino) != (before[path.name], nodes[path.name])
    }
    assert changed == {"small.md"}
    assert (tmp_path / "small.md").read_text().startswith("# small\n")


def test_a_readme_of_someone_else_is_not_replaced(tmp_path: Path) -> None:
    check_pages(tmp_path)
    (tmp_path / "README.md").write_text("# My project\n")
    with pytest.raises(RequestError, match=r"README\.md is not a list of results.*--out"):
        check_pages(tmp_path)
    with pytest.raises(RequestError):
        write_pages(tmp_path, tables())
    assert contents(tmp_path) == {"README.md": b"# My project\n"}


def test_the_list_says_what_the_folder_is_and_how_it_grows() -> None:
    text = results_index(overview(tables()))
    assert text.startswith(
        "# Published tables, measured again\n\nThis folder holds the printed numbers of papers"
    )
    assert "`kedge reproduce NAME --out docs/results`" in text
    assert "Scale" not in text
    assert "Scale small: the runs are shorter" in results_index(overview([(mixed("small"), [])]))


def test_the_list_has_hardware_and_seconds_of_every_table() -> None:
    text = results_index(overview(tables()))
    row = next(line for line in text.splitlines() if line.startswith("| [small]"))
    assert row.endswith("| 3 min | NVIDIA H200 |")
    row = next(line for line in text.splitlines() if line.startswith("| unmeasured"))
    assert row.endswith("| – | – |")


def test_the_docs_name_every_table() -> None:
    text = (Path(__file__).parents[3] / "docs/reproduce.md").read_text()
    assert (
        sorted(re.findall(r"^\| `([\w-]+-(?:table|figure|section)\d+)` \|", text, flags=re.MULTILINE))
        == names()
    )
