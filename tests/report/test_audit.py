"""The audit as a table for a terminal and as a page."""

import re
from io import StringIO
from typing import Any
from xml.etree import ElementTree

import pytest
from rich.cells import cell_len
from rich.console import Console
from rich.table import Table
from rich.text import Text

from kedge.audit.audit import plan_audit
from kedge.audit.check import KINDS, CheckResult
from kedge.audit.summary import summary
from kedge.report.pages.audit import page
from kedge.report.tables.audit import MEANINGS, audit_table, failures, formula_table, short_error

PLAN = plan_audit()
VERSIONS = {"kedge": "0.1.0", "torch": "2.13"}
BAD = '<w> & "[red]w"'


def audit_results(wrong: str = "") -> list[CheckResult]:
    """The results of an audit in which all checks pass except those named `wrong`."""
    return [
        CheckResult(
            c.method, c.name, c.kind, c.name != wrong, 2e-15 if c.name != wrong else 0.5, f"{c.name}: {BAD}"
        )
        for c in PLAN.checks
    ]


def methods(rows: list[CheckResult]) -> list[dict[str, Any]]:
    return summary(rows, PLAN.formulas)


def lines(rows: list[CheckResult], width: int) -> list[str]:
    return [line.rstrip() for line in printed(audit_table(methods(rows), width), width).splitlines()]


def printed(table: Table, width: int, styles: bool = False) -> str:
    out = Console(width=width, record=True, file=StringIO())
    out.print(table)
    return out.export_text(styles=styles)


@pytest.mark.parametrize("width", [64, 80, 100, 140, 200])
@pytest.mark.parametrize("wrong", ["", "finite differences"])
def test_the_table_fits_the_terminal_and_has_a_row_for_every_method(width: int, wrong: str) -> None:
    shown = lines(audit_results(wrong), width)
    assert max(map(len, shown)) <= width
    first = [line.split()[0] for line in shown]
    assert first == ["method", *dict.fromkeys(c.method for c in PLAN.checks)]
    assert not any("…" in line for line in shown)


def test_a_wide_table_shows_counts_errors_and_every_kind() -> None:
    shown = lines(audit_results(), 120)
    assert shown[0].split() == ["method", *KINDS]
    fedavg = next(line for line in shown if line.startswith("fedavg "))
    assert re.split(r"\s{2,}", fedavg)[1:4] == ["7 ✓ 2e-15", "3 ✓ 2e-15", "2 ✓ 2e-15"]
    protocol = next(line for line in shown if line.startswith("protocol"))
    assert protocol.count("–") == len(KINDS) - 1


def test_eighty_columns_still_name_every_kind() -> None:
    assert lines(audit_results(), 80)[0].split() == ["method", *KINDS]
    assert "2e-15" not in "".join(lines(audit_results(), 80))


def test_a_failure_is_red_counted_and_told() -> None:
    rows = audit_results("finite differences")
    table = audit_table(methods(rows), 120)
    row = next(line for line in printed(table, 120).splitlines() if line.startswith("fedprox"))
    assert "1/2 ✗ 5e-01" in row
    cells = [cell for column in table.columns for cell in column.cells]
    assert [cell.style for cell in cells if isinstance(cell, Text) and cell.plain == "1/2 ✗ 5e-01"] == [
        "bold red"
    ] * sum("5e-01" in line for line in printed(table, 120).splitlines())
    told = list(failures([r._asdict() for r in rows if r.method == "fedprox"]))
    assert str(told[0]) == "\n✗ fedprox, gradient: finite differences"
    assert len(told) == 2
    assert not list(failures([r._asdict() for r in audit_results()]))


def test_formulas_are_listed_below_each_once() -> None:
    shown = printed(formula_table(methods(audit_results())), 200).splitlines()
    prox = "each client minimizes f_i(w) + μ/2 ‖w − wᵗ‖²"
    assert re.split(r"\s{2,}", next(line for line in shown if line.startswith("fedprox")))[1].strip() == prox
    assert sum("μ/2 ‖w − wᵗ‖²" in line for line in shown) == 1
    narrow = printed(formula_table(methods(audit_results())), 80).splitlines()
    assert max(cell_len(line.rstrip()) for line in narrow) <= 80


@pytest.mark.parametrize(("error", "text"), [(0.0, "0"), (2.4e-16, "2e-16"), (0.5, "5e-01")])
def test_an_error_in_few_letters(error: float, text: str) -> None:
    assert short_error(error) == text


def tree(rows: list[CheckResult], notes: tuple[str, ...] = ()) -> ElementTree.Element:
    text = page(methods(rows), [row._asdict() for row in rows], notes, VERSIONS)
    assert text.startswith("<!DOCTYPE html>\n")
    return ElementTree.fromstring(text.partition("\n")[2])


def words(element: ElementTree.Element) -> str:
    return "".join(element.itertext())


def test_the_page_is_well_formed_and_has_every_method_formula_and_check() -> None:
    root = tree(audit_results())
    names = [words(head) for head in root.iter("th") if head.get("scope") == "row"]
    assert names == list(dict.fromkeys(c.method for c in PLAN.checks))
    everything = words(root)
    assert all(text in everything for text in PLAN.formulas.values())
    assert all(f"{c.name}: {BAD}" in everything for c in PLAN.checks)
    assert f"{len(PLAN.checks)} of {len(PLAN.checks)} checks pass" in everything
    assert "kedge 0.1.0 · torch 2.13" in everything
    assert [words(head) for head in root.iter("th") if head.get("title")] == list(KINDS)
    assert set(MEANINGS) == set(KINDS)


def test_the_page_needs_nothing_else_and_is_the_same_every_time() -> None:
    rows = audit_results()
    text = page(methods(rows), [row._asdict() for row in rows], (), VERSIONS)
    assert not re.search(r"https?:|src=|<link|<script|@import|url\(", text)
    assert text == page(methods(rows), [row._asdict() for row in rows], (), VERSIONS)


def test_the_page_unfolds_methods_that_fail_and_colors_the_cell() -> None:
    root = tree(audit_results("finite differences"), ("mine: not checked & why",))
    opened = sum(part.get("open") is not None for part in root.iter("details"))
    assert opened == len({c.method for c in PLAN.checks if c.name == "finite differences"})
    bad = [words(cell) for cell in root.iter("td") if cell.get("class") == "cell bad"]
    assert bad == ["1 of 2 ✗ 5e-01"] * opened
    titles = [cell.get("title", "") for cell in root.iter("td") if cell.get("class") == "cell bad"]
    assert "✓ closed form\n✗ finite differences" in titles
    assert "mine: not checked & why" in words(root)
    assert not [part for part in tree(audit_results()).iter("details") if part.get("open")]


def test_a_long_name_is_cut_in_front_where_there_is_no_room() -> None:
    kinds = {kind: {"checks": 1, "failed": 0, "error": 0.0} for kind in KINDS}
    one = {"method": "my.long.package.of.methods:mine", "formula": "", "passed": True, "kinds": kinds}
    for width, name in ((160, one["method"]), (70, "…of.methods:mine")):
        assert printed(audit_table([one], width), width).splitlines()[1].split()[0] == name
