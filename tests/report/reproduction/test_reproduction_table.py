"""A reproduced table in a terminal: it fits, and no number or column is missing, cut or wrapped."""

import re
from dataclasses import replace
from io import StringIO

import pytest
from rich.console import Console
from tests.report.reproduction.reproduced import mixed, shipped, shipped_terminal, terminal
from tests.reproduce.tables import a_paper, an_entry, fedbug, measured_with

from kedge.report.reproduction.layout import HARD_SPACE, families, heading, heading_parts, side_by_side
from kedge.report.reproduction.table import overview_table
from kedge.report.reproduction.text import NOTHING, difference_text, measured_text, printed_text
from kedge.report.reproduction.values import overview
from kedge.reproduce.claims import judge_claims
from kedge.reproduce.measured import Measured
from kedge.reproduce.paper import names

LINE = re.compile(r"(?P<row>.*?) +(?P<name>printed|measured|difference) {2,}(?P<texts>.*)")
WIDTHS = (80, 100, 200)
each_table = pytest.mark.parametrize("name", names())


def lines_of(text: str) -> dict[tuple[str, str], list[str]]:
    """The texts in the cells by row and line, in all parts and blocks, without dashes."""
    found: dict[tuple[str, str], list[str]] = {}
    row = ""
    for line in text[: text.index("\nprinted:")].splitlines():
        if match := LINE.fullmatch(line.rstrip()):
            row = match["row"] or row
            texts = re.split(r" {2,}", match["texts"].strip())
            found.setdefault((row, match["name"]), []).extend(one for one in texts if one != NOTHING)
    return {key: texts for key, texts in found.items() if texts}


def expected(measured: Measured, seeds: int) -> dict[tuple[str, str], list[str]]:
    """The texts of all places by row and line."""
    found: dict[tuple[str, str], list[str]] = {}
    paper = measured.paper
    for key in (
        (block, row, column) for block in paper.blocks for row in paper.rows for column in paper.columns
    ):
        if place := measured.place(*key):
            texts = printed_text(place.entry), measured_text(place, seeds), difference_text(place)
            for name, text in zip(("printed", "measured", "difference"), texts, strict=True):
                found.setdefault((key[1], name), []).extend([text] if text != NOTHING else [])
    return {key: texts for key, texts in found.items() if texts}


@each_table
def test_every_number_of_a_shipped_table_is_shown_at_every_width(name: str) -> None:
    for width in WIDTHS:
        text = shipped_terminal(name, width)
        assert lines_of(text) == expected(shipped(name), 2)
        assert max(map(len, text.splitlines())) <= width
        assert "…" not in text


@pytest.mark.parametrize("scale", ["full", "small"])
def test_every_kind_of_number_is_shown_at_every_width(scale: str) -> None:
    measured = mixed(scale)
    for width in WIDTHS:
        assert lines_of(terminal(measured, width)) == expected(measured, 3)


@each_table
def test_every_column_has_its_heading(name: str) -> None:
    """Each heading occurs as often as its column is shown, and no word is cut."""
    columns = dict.fromkeys((block, column) for block, _, column in shipped(name).by_name)
    for width in WIDTHS:
        text = shipped_terminal(name, width)
        lines = text[: text.index("\nprinted:")].splitlines()
        shown = [word for line in lines for word in re.split(r" {2,}", line.strip())]
        for _, column in columns:
            for line in heading(column):
                shown.remove(line)  # raises if the line is missing


def test_numbers_are_those_of_the_runs() -> None:
    """Other tests compute the expected texts with the code under test; these are computed by hand."""
    table = lines_of(terminal(mixed(), 100))
    assert table["A|B", "printed"] == ["80.00 ± 0.50", "70.00", ">200", "65.00"]
    assert table["A|B", "measured"] == ["80.00 ± 1.00", "1/3 diverged", "1/3 not reached", "66.00 ± 0.00"]
    assert table["A|B", "difference"] == ["0.00", "+1.00"]
    assert table["<C*>", "printed"] == ["60.00", "50.00", "120"]
    assert table["<C*>", "measured"] == ["62.50 (1)", "not reached"]
    assert table["<C*>", "difference"] == ["+2.50"]
    assert table["D", "measured"] == ["33.30 ± 0.00"]
    assert ("D", "printed") not in table
    assert ("D", "difference") not in table


def test_one_seed_has_no_deviation() -> None:
    text = terminal(fedbug(seeds=1), 100)
    assert "±" not in text
    assert "measured: one seed; accuracy of the mean of all clients' last models" in text


def test_lines_that_say_nothing_are_left_out() -> None:
    text = terminal(fedbug(places=0), 100)
    assert {name for _, name in lines_of(text)} == {"printed"}
    assert not re.search(r" measured +–", text)
    assert "Nothing is measured at scale full yet." in text
    assert "Sittings" not in text


def test_a_row_without_any_number_is_still_there() -> None:
    measured = measured_with(a_paper([an_entry("A", "x", 1.0), an_entry("B", "x", None)]), [])
    assert re.search(r"^B +measured +–$", terminal(measured, 80), flags=re.MULTILINE)


def test_the_columns_of_one_partition_stay_together() -> None:
    """At 100 characters five of FedBug's ten columns fit: first IID, then Dirichlet."""
    columns = fedbug(places=0).paper.columns
    groups = list(side_by_side(columns, dict.fromkeys(columns, 14), 75))
    assert groups == [columns[:5], columns[5:]]
    assert list(side_by_side(columns, dict.fromkeys(columns, 14), 140)) == [columns]


def test_the_columns_of_one_dataset_stay_together() -> None:
    columns = shipped("layer-expansion-table2").paper.columns
    assert [len(family) for family in families(columns)] == [3, 3, 3, 3]
    assert [len(group) for group in side_by_side(columns, dict.fromkeys(columns, 10), 70)] == [6, 6]


def test_columns_that_do_not_fit_are_split_evenly() -> None:
    columns = [f"{number}" for number in range(8)]
    widths = dict.fromkeys(columns, 10)
    assert [len(group) for group in side_by_side(columns, widths, 70)] == [4, 4]
    assert [len(group) for group in side_by_side(columns, widths, 30)] == [3, 3, 2]
    assert [len(group) for group in side_by_side(columns, widths, 5)] == [1] * 8


def test_headings_are_broken_between_parts_only() -> None:
    hard = f"t{HARD_SPACE}={HARD_SPACE}(0,{HARD_SPACE}50,{HARD_SPACE}100)"
    name = "CIFAR-100, T = 1000, t = (0, 50, 100)"
    assert heading_parts(name) == ["CIFAR-100", "T = 1000", "t = (0, 50, 100)"]
    assert heading(name) == ["CIFAR-100,", f"T{HARD_SPACE}={HARD_SPACE}1000,", hard]
    assert heading("Before the switch") == ["Before the", "switch"]


def test_claims_come_with_sign_evidence_and_rules() -> None:
    text = " ".join(terminal(mixed(), 100).split())
    assert "≈ within noise (1 of 2 measured) “A|B is above <C*>.” 1 of 1 comparisons have" in text
    assert "Held: every comparison has the claimed sign" in text


def test_a_sitting_is_one_line_with_its_command_and_hardware() -> None:
    assert (
        "2025-03-01  kedge reproduce fedbug-table1 --seeds 3  (240 runs in 3 min, NVIDIA H200)"
        in terminal(fedbug(), 100).splitlines()
    )


@pytest.mark.parametrize(
    ("places", "said"),
    [
        (0, "Not measured: the data are not public.\n"),
        (3, "3 of 80 numbers measured, 3 seeds. "),
        (80, "80 of 80 numbers measured, 3 seeds. "),
    ],
)
def test_a_table_that_cannot_be_measured_says_why(places: int, said: str) -> None:
    measured = fedbug(places=places)
    paper = replace(measured.paper, unavailable="the data are not public.")
    text = terminal(replace(measured, paper=paper), 200)
    assert said in text
    assert ("the data are not public" in text) == (places < 80)
    assert "Nothing is measured" not in text


@pytest.mark.parametrize("width", WIDTHS)
def test_the_list_of_tables_has_every_name_title_and_number(width: int) -> None:
    other = mixed()
    rows = overview([(fedbug(), []), (other, judge_claims(other)), (fedbug(places=0), [])])
    console = Console(width=width, file=StringIO(), color_system=None)
    console.print(overview_table([*rows, {**rows[2], "name": "closed", "unavailable": "No data."}]))
    text = console.file.getvalue()  # type: ignore[attr-defined]  # a StringIO
    found = [line.split() for line in text.splitlines()]
    assert ["fedbug-table1", "80", "of", "80", "3", "0.20", "–"] in found
    assert ["small", "7", "of", "9", "1", "to", "3", "1.17", "≈", "1"] in found
    assert ["fedbug-table1", "0", "of", "80", "–", "–", "–"] in found
    assert ["closed", "unavailable", "–", "–", "–"] in found
    assert text.count("FedBug (Kao et al., 2023)\n") == 2  # one heading for each paper
    assert "  A small table" in text
    assert max(map(len, text.splitlines())) <= width
