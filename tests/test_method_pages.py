"""The pages of docs/methods are what the texts and the code make now, and every method has one."""

import re
from dataclasses import asdict

import pytest
from docs.methods.generate import FACTORIES, differing, pages, usage

from kedge.algorithms import METHOD_REGISTRY
from kedge.config.document import override, read
from kedge.config.experiment import resolve
from kedge.measure.cells import parse_cell
from kedge.report.method_texts import FOLDER, cells_of, text_of

each_text = pytest.mark.parametrize("name", FACTORIES)


def test_exactly_the_registered_methods_and_schedules_have_a_text() -> None:
    """A method is one file, one row in kedge/algorithms/__init__.py, and one text in texts/."""
    assert {path.stem for path in FOLDER.glob("*.toml")} == set(FACTORIES)


@each_text
def test_a_text_has_all_fields(name: str) -> None:
    text = text_of(name)
    optional = {"example", "then"} | ({"cell"} if name == "all" else set())  # it has no paper
    assert not [field for field, value in asdict(text).items() if not value and field not in optional]
    written = (text.paper, text.idea, text.equation, text.use, text.cost, text.reports, *text.disagree)
    assert all(isinstance(part, str) for part in written)


@each_text
def test_a_text_names_its_paper_s_cells_in_words_too(name: str) -> None:
    """The first of them at least: others may be the same model."""
    cells = text_of(name).cell
    assert len(cells) == len(set(cells))
    assert all(parse_cell(cell) and ".accuracy" in cell for cell in cells)
    assert not cells or f"`{cells[0]}`" in text_of(name).reports
    assert bool(cells) == (name != "all")


def test_stages_have_a_cell_where_a_paper_has_figures_for_them() -> None:
    for name in FACTORIES:
        for following, text in text_of(name).then.items():
            assert following in METHOD_REGISTRY
            assert text.paper
            assert text.cell
    assert cells_of("feddyn->fedavg") == ("distributed.global.accuracy",)
    assert cells_of("fedavg->scaffold") == cells_of("a method of one's own") == ()
    assert cells_of("fedbug+feddyn") == ("all.global.accuracy",)


@each_text
def test_papers_are_called_by_name(name: str) -> None:
    assert not re.search(r"\bseeds? 00", str(text_of(name)), flags=re.IGNORECASE)


@each_text
def test_the_command_of_a_page_is_understood(name: str) -> None:
    command, _ = usage(name, FACTORIES[name], text_of(name))
    resolved = resolve(override(read("quickstart"), {"method": command}))
    assert name in (resolved.method["name"], resolved.schedule["name"])


@pytest.mark.slow
def test_the_pages_are_what_the_code_makes() -> None:
    changed = differing(pages())
    assert not changed, f"these are out of date: {', '.join(changed)}. Run: make docs"
