"""Every shipped table of a paper resolves, and each of its numbers belongs to one cell of its grid."""

from typing import Any

import pytest

from kedge.core.errors import DataError
from kedge.measure.cells import parsed
from kedge.reproduce.paper import cell_of, document_of, names, paper_of
from kedge.running.document import SHIPPED, read
from kedge.running.grid import cells

Document = dict[str, Any]

CONTROLS: dict[str, set[str]] = {}  # cells that train although the paper prints no number of theirs, by table
each_table = pytest.mark.parametrize("name", names())


@each_table
def test_every_printed_number_belongs_to_one_cell_and_every_cell_gives_one(name: str) -> None:
    document = document_of(name)
    every = cells(document)
    used = {cell_of(entry, every).name for entry in paper_of(document).entries}
    assert {cell.name for cell in every} - used == CONTROLS.get(name, set())


@each_table
def test_the_paper_s_settings_lead_to_its_metric(name: str) -> None:
    document = document_of(name)
    every = cells(document)
    for entry in paper_of(document).entries:
        experiment = cell_of(entry, every).experiment
        cell = parsed(entry.metric)
        if entry.metric.startswith("features."):
            assert 0 < experiment.measure.features_every <= experiment.rounds
        else:
            assert cell is not None
            assert experiment.evaluation.all or cell.model != "all"
        if entry.at.isdecimal():
            assert int(entry.at) <= experiment.rounds
            assert int(entry.at) % experiment.evaluation.every == 0
        else:
            assert entry.at in ("last", "best")


@each_table
def test_printed_numbers_are_in_percent_and_bounds_belong_to_targets(name: str) -> None:
    paper = paper_of(document_of(name))
    for entry in paper.entries:
        assert not entry.bound or entry.target is not None
        assert entry.target is None or 0 < entry.target < 1
        if entry.percent and entry.value is not None:
            assert 1 < entry.value <= 100


@each_table
def test_a_table_says_where_it_is_from_and_what_it_claims(name: str) -> None:
    paper = paper_of(document_of(name))
    assert paper.name == name
    assert paper.title
    assert paper.source
    assert paper.claims
    assert all(note.endswith(".") for note in paper.notes)


def test_every_table_has_its_file_of_numbers_and_every_file_a_table() -> None:
    assert {path.stem for path in (SHIPPED / "published").glob("*.csv")} == set(names())


@pytest.mark.parametrize(
    ("name", "count"),
    [
        ("fedbug-table2", 80),
        ("fedbug-table4", 40),
        ("feddyn-fedavg-table1", 36),
        ("feddyn-fedavg-table2", 8),
    ],
)
def test_the_grid_has_the_cells_of_the_table(name: str, count: int) -> None:
    assert len(cells(read(name))) == count


def test_a_number_that_two_cells_could_give_is_refused() -> None:
    document: Document = document_of("fedbug-table5")
    document["grid"] = {**document["grid"], "optimizer.lr": [0.1, 0.2]}
    entry = paper_of(document).entries[0]
    with pytest.raises(DataError, match="2 cells of the grid have"):
        cell_of(entry, cells(document))
