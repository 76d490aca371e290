"""The pages of docs/methods are what the texts and the code make now, and every method has one."""

import re
from typing import Any

import pytest
from docs.methods.generate import FIELDS, METRIC, differing, pages, texts, untold, usage

from kedge.algorithms import METHODS, SCHEDULES
from kedge.running.config import resolve
from kedge.running.document import override, read

TEXTS = texts()
WRITTEN: dict[str, dict[str, Any]] = {**TEXTS["methods"], **TEXTS["schedules"]}
each_text = pytest.mark.parametrize("name", WRITTEN)


def test_every_method_and_schedule_has_a_text() -> None:
    assert not untold(TEXTS), f"write these tables in docs/methods/texts.toml, with the fields {FIELDS}"


def test_every_text_is_of_something_that_exists() -> None:
    """A method is registered in METHODS of kedge/algorithms/__init__.py, a schedule in SCHEDULES."""
    unknown = {*TEXTS["methods"]} - {*METHODS}, {*TEXTS["schedules"]} - {*SCHEDULES}
    assert not any(unknown), unknown


@each_text
def test_a_text_has_all_fields(name: str) -> None:
    text = WRITTEN[name]
    assert set(FIELDS) <= set(text) <= {*FIELDS, "example"}
    assert all(text[field] for field in FIELDS)
    assert all(isinstance(text[field], str) for field in FIELDS if field != "disagree")
    assert all(isinstance(line, str) for line in text["disagree"])


@each_text
def test_a_text_names_a_metric_unless_it_has_no_paper(name: str) -> None:
    assert re.search(METRIC, WRITTEN[name]["reports"]) or name == "all"


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
