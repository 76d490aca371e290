"""The pages of docs/methods are what the texts and the code make now, and every method has one."""

import re
from typing import Any

import pytest
from docs.methods.generate import FIELDS, differing, pages, untold, usage

from kedge.algorithms import METHODS, SCHEDULES
from kedge.algorithms.texts import cells_in, cells_of, texts
from kedge.config.document import override, read
from kedge.config.experiment import resolve
from kedge.measure.cells import parse_cell

TEXTS = texts()
WRITTEN: dict[str, dict[str, Any]] = {**TEXTS["methods"], **TEXTS["schedules"]}
each_text = pytest.mark.parametrize("name", WRITTEN)


def test_every_method_and_schedule_has_a_text() -> None:
    assert not untold(TEXTS), f"write these tables in kedge/algorithms/texts.toml: {FIELDS}"


def test_every_text_is_of_something_that_exists() -> None:
    """A method is registered in METHODS of kedge/algorithms/__init__.py, a schedule in SCHEDULES."""
    unknown = {*TEXTS["methods"]} - {*METHODS}, {*TEXTS["schedules"]} - {*SCHEDULES}
    assert not any(unknown), unknown


@each_text
def test_a_text_has_all_fields(name: str) -> None:
    text = WRITTEN[name]
    needed = {*FIELDS} - ({"cell"} if name == "all" else set())  # it has no paper
    assert needed <= set(text) <= {*FIELDS, "example"}
    assert all(text[field] for field in needed)
    assert all(isinstance(text[field], str) for field in needed - {"disagree", "cell"})
    assert all(isinstance(line, str) for line in text["disagree"])


@each_text
def test_a_text_names_its_paper_s_cells_in_words_too(name: str) -> None:
    """The first of them at least: others may be the same model."""
    cells = cells_in(WRITTEN[name])
    assert len(cells) == len(set(cells))
    assert all(parse_cell(cell) and ".accuracy" in cell for cell in cells)
    assert not cells or f"`{cells[0]}`" in WRITTEN[name]["reports"]
    assert bool(cells) == (name != "all")


def test_stages_have_a_cell_where_a_paper_has_figures_for_them() -> None:
    for label, text in TEXTS["stages"].items():
        assert {"paper", "cell"} == set(text)
        assert all(part in METHODS for part in label.split("->"))
    assert cells_of("feddyn->fedavg") == ("distributed.global.accuracy",)
    assert cells_of("fedavg->scaffold") == cells_of("a method of one's own") == ()
    assert cells_of("fedbug+feddyn") == ("all.global.accuracy",)


@each_text
def test_papers_are_called_by_name(name: str) -> None:
    assert not re.search(r"\bseeds? 00", str(WRITTEN[name]), flags=re.IGNORECASE)


@pytest.mark.parametrize("name", [*METHODS, *SCHEDULES])
def test_the_command_of_a_page_is_understood(name: str) -> None:
    command, _ = usage(name, {**METHODS, **SCHEDULES}[name], WRITTEN[name])
    resolved = resolve(override(read("quickstart"), {"method": command}))
    assert name in (resolved.method["name"], resolved.schedule["name"])


def test_the_pages_are_what_the_code_makes() -> None:
    changed = differing(pages())
    assert not changed, f"these are out of date: {', '.join(changed)}. Run: make docs"
