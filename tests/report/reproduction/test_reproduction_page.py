"""The Markdown page of a reproduced table: valid tables, escaped characters, relative links, all numbers."""

import re
from dataclasses import replace

import pytest
from tests.report.reproduction.reproduced import mixed, shipped, shipped_page
from tests.reproduce.tables import fedbug

from kedge.report.reproduction.layout import HARD_SPACE
from kedge.report.reproduction.page import overview_page, page
from kedge.report.reproduction.text import NOTHING, measured_text, printed_text
from kedge.report.reproduction.values import overview
from kedge.reproduce.claims import judge_claims
from kedge.reproduce.measured import Measured
from kedge.reproduce.paper import names

LINK = re.compile(r"\]\(([^)]*)\)")


def text_of(measured: Measured) -> str:
    return page(measured, judge_claims(measured))


def tables_of(text: str) -> list[list[list[str]]]:
    """The tables of a page: rows of cells, head and rule included."""
    found: list[list[list[str]]] = [[]]
    for line in text.splitlines():
        if line.startswith("|"):
            assert line.endswith("|")
            found[-1].append([cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]])
        elif found[-1]:
            found.append([])
    return [table for table in found if table]


def numbers_of(text: str) -> dict[tuple[str, str], list[str]]:
    """The texts in the cells by row and line, in all parts and blocks, without dashes."""
    found: dict[tuple[str, str], list[str]] = {}
    for head, _, *rows in tables_of(text):
        for row, names_of_lines, *cells in rows if not head[0] else ():
            lines = names_of_lines.split("<br>")
            for cell in cells:
                texts = cell.replace(HARD_SPACE, " ").split("<br>")
                assert len(texts) == len(lines)
                for name, one in zip(lines, texts, strict=True):
                    found.setdefault((row, name), []).extend([one] if one not in ("", NOTHING) else [])
    return found


@pytest.mark.parametrize("name", names())
def test_every_row_has_as_many_cells_as_the_head(name: str) -> None:
    tables = tables_of(shipped_page(name))
    assert len(tables) >= 3
    for head, rule, *rows in tables:
        assert rows
        assert all(re.fullmatch("-+:?", one) for one in rule)
        assert {len(row) for row in (rule, *rows)} == {len(head)}


@pytest.mark.parametrize("name", names())
def test_a_table_is_not_wider_than_a_page(name: str) -> None:
    for table in tables_of(shipped_page(name)):
        if not table[0][0]:
            lines = [max(map(len, cell.replace("*", "").split("<br>"))) for cell in table[2]]
            assert sum(lines) <= 110


@pytest.mark.parametrize("name", names())
def test_every_number_is_on_the_page(name: str) -> None:
    measured = shipped(name)
    found = numbers_of(shipped_page(name))
    paper = measured.paper
    for row in paper.rows:
        places = [
            place
            for block in paper.blocks
            for column in paper.columns
            if (place := measured.place(block, row, column))
        ]
        said = [f"**{measured_text(place, 2)}**" for place in places]
        assert said == found[row, "measured"]
        printed = [printed_text(place.entry) for place in places]
        assert [text for text in printed if text != NOTHING] == found.get((row, "printed"), [])


def test_printed_measured_and_difference_are_lines_of_a_cell() -> None:
    (table, *_) = tables_of(text_of(mixed()))
    heads = [cell.replace(HARD_SPACE, " ") for cell in table[0]]
    assert heads == ["", "", "x,<br>IID", "x,<br>α = 0.3", "rounds to<br>75 %", "round 150"]
    first = [cell.replace(HARD_SPACE, " ") for cell in table[2]]
    assert first[:4] == [
        "A\\|B",
        "printed<br>measured<br>difference",
        "80.00 ± 0.50<br>**80.00 ± 1.00**<br>0.00",
        "70.00<br>**1/3 diverged**<br>–",
    ]
    assert first[4:] == [">200<br>**1/3 not reached**<br>–", "65.00<br>**66.00 ± 0.00**<br>+1.00"]
    second = [cell.replace(HARD_SPACE, " ") for cell in table[3]]
    assert second[0] == "&lt;C\\*>"
    assert second[2:] == [
        "60.00<br>**62.50 (1)**<br>+2.50", "50.00<br>–<br>–", "120<br>**not reached**<br>–", "–<br>–<br>–"
    ]  # fmt: skip
    assert table[4] == ["D", "measured", f"**33.30{HARD_SPACE}±{HARD_SPACE}0.00**", "", "", ""]


def test_numbers_are_never_wrapped() -> None:
    for table in tables_of(text_of(fedbug())):
        if not table[0][0]:
            assert not any(" " in cell for row in table[2:] for cell in row[2:])


def test_fedbug_s_ten_columns_are_two_tables_of_five() -> None:
    tables = [table for table in tables_of(text_of(fedbug())) if not table[0][0]]
    assert [len(table[0]) - 2 for table in tables] == [5, 5, 5, 5]
    assert all("IID" in head for head in tables[0][0][2:])


def test_signs_of_markdown_are_escaped() -> None:
    measured = mixed()
    sitting = replace(measured.records[0].sitting, command="kedge reproduce a --cells 'method=a*|b'")
    text = text_of(
        replace(measured, records=tuple(replace(one, sitting=sitting) for one in measured.records))
    )
    claims, sittings = tables_of(text)[-2:]
    assert claims[2][0] == "A\\|B is above &lt;C\\*>."
    assert sittings[2][1] == "`kedge reproduce a --cells 'method=a*\\|b'`"


def test_links_are_relative() -> None:
    text = text_of(mixed()) + overview_page(overview([(mixed(), []), (fedbug(), [])]))
    assert set(LINK.findall(text)) == {"small/", "small.md", "fedbug-table1.md"}


def test_the_page_explains_its_numbers() -> None:
    text = text_of(mixed())
    assert text.startswith("# small\n\nA small table.\n\nSource: Someone (2020), Table 1.\n")
    assert "7 of 9 numbers measured, 1 to 3 seeds. Mean absolute difference from the print: 1.17" in text
    assert "- **printed**: the paper's number, the mean of 3 runs; – where it has none.\n" in text
    assert (
        "- **measured**: mean ± standard deviation over 3 seeds (a number in parentheses: how many seeds, "
        "where it is another number); accuracy of the mean of all clients' last models on the common test "
        "set (all.global.accuracy) in round 150 or the last round; the first round in which accuracy of the "
        "mean of all clients' last models on the common test set (all.global.accuracy) reaches 75 %.\n"
    ) in text
    assert "- **difference**: measured minus printed, in percentage points.\n" in text
    assert "Diverged: " in text
    assert "Not reached: " in text
    assert "- A note.\n" in text
    assert "Scale" not in text


def test_the_page_of_shortened_runs_says_so() -> None:
    text = text_of(mixed("small"))
    assert "Scale small: these runs are shorter than the paper's" in text
    assert "are read instead: 150 → 15.\n" in text
    assert "Numbers of rounds have no difference at this scale." in text


def test_a_page_without_failures_explains_none() -> None:
    text = text_of(fedbug())
    assert "Diverged" not in text
    assert "Not reached" not in text
    assert "parentheses" not in text


def test_the_list_of_tables_links_measured_ones_only() -> None:
    (first, second) = overview([(fedbug(), []), (fedbug(places=0), [])])
    (table,) = tables_of(overview_page([{**first, "verdicts": {"held": 1, "not held": 2}}, second]))
    assert {len(row) for row in table} == {8}
    assert table[2] == [
        "[fedbug-table1](fedbug-table1.md)", "CIFAR-10, standard CNN, 100 clients: test accuracy in percent",
        "80 of 80", "3", "0.20", "✓ 1, ✗ 2", "3 min", "NVIDIA H200",
    ]  # fmt: skip
    assert table[3][0] == "fedbug-table1"
    assert table[3][2:] == ["0 of 80", "–", "–", "–", "–", "–"]
