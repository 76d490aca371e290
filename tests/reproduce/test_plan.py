"""The runs that a table needs, the runs that have a record, and the cells that --cells selects."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.reproduce.digits_tables import runs, ship, table, write_tables
from tests.reproduce.tables import a_record

from kedge.core.errors import RequestError
from kedge.reproduce.plan import (
    Run,
    identities_of,
    identity_of,
    missing_runs,
    one_run_per_program,
    runs_of,
    select_cells,
    table_of,
)
from kedge.reproduce.records import Record
from kedge.reproduce.scales import Scale


@pytest.fixture(autouse=True)
def _digits(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    ship(monkeypatch, write_tables(tmp_path / "tables"))


def recorded(run: Run, **others: Any) -> Record:
    return a_record(run.identity, run.experiment.seed, [(20, 0.9)], **{"table": run.table} | others)


def test_every_cell_has_a_run_with_each_seed() -> None:
    found = runs(seeds=3)
    assert len(found) == len({run.key for run in found}) == 4 * 3
    assert [run.experiment.seed for run in found[:4]] == [0, 1, 2, 0]
    assert {run.experiment.checkpoint.every for run in found} == {0}
    assert found[1].name == "digits-table1: method=fedavg,partition=iid-clients-4, seed 1"


def test_seeds_are_counted_from_the_experiment_s_seed() -> None:
    table = table_of("digits-table1", {"seed": 10})
    assert [run.experiment.seed for run in runs_of(table, "full", range(2), Path())[:2]] == [10, 11]


def test_a_run_has_the_identity_of_its_cell_at_its_scale() -> None:
    every = table()
    counts: list[tuple[Scale, int]] = [
        ("full", 4),
        ("small", 4),
        ("smoke", 2),
    ]  # smoke: one partition for all
    for scale, count in counts:
        found = identities_of(every, scale, Path())
        assert {(run.cell.name, run.identity) for run in runs(scale=scale)} == set(found.items())
        assert len(set(found.values())) == count
    assert not {run.identity for run in runs()} & {run.identity for run in runs(scale="small")}


def test_settings_that_only_change_rounding_keep_the_identity() -> None:
    first = runs()[0]
    others = ({"engine.precision": "bf16"}, {"engine.device": "cuda"}, {"engine.name": "sequential"})
    for settings in others:
        found = runs_of(table_of("digits-table1", settings), "full", range(1), Path())[0]
        assert found.experiment != first.experiment
        assert found.key == first.key


@pytest.mark.parametrize(
    "settings",
    [
        {"rounds": 21},
        {"training.epochs": 2},
        {"optimizer.lr": 0.2},
        {"model": "mlp(hidden=[10])"},
        {"evaluation.every": 5},
        {"participation.per_round": 3},
        {"data": "synthetic"},
    ],
    ids=lambda settings: next(iter(settings)),
)
def test_settings_that_determine_the_numbers_change_the_identity(settings: dict[str, Any]) -> None:
    changed = identities_of(table_of("digits-table1", settings), "full", Path())
    assert not set(changed.values()) & set(identities_of(table(), "full", Path()).values())


def test_the_folder_of_the_data_does_not_change_the_identity() -> None:
    experiment = runs(scale="smoke")[0].experiment
    moved = replace(experiment, data={**experiment.data, "path": "/elsewhere"})
    assert identity_of(moved) == identity_of(experiment)


def test_a_run_of_two_tables_is_trained_once() -> None:
    both = runs() + runs("digits-table2")
    found = missing_runs(both, [])
    assert len(both) == 8
    assert len(found) == 7
    assert [run.table for run in found].count("digits-table1") == 4


def test_a_recorded_run_is_not_trained_whichever_table_it_was_trained_for() -> None:
    first = runs()[0]
    others = runs("digits-table2")
    shared = next(run for run in others if run.key == first.key)
    found = missing_runs(runs(seeds=2) + others, [recorded(shared)])
    assert first.key not in {run.key for run in found}
    assert len(found) == 4 * 2 - 1 + 3


def test_a_record_of_another_precision_or_a_diverged_one_counts() -> None:
    first, second, *rest = runs()
    found = missing_runs(runs(), [recorded(first, precision="bf16"), recorded(second, diverged=True)])
    assert found == rest


def test_a_record_of_other_rounds_another_seed_or_another_identity_does_not_count() -> None:
    first = runs()[0]
    longer = replace(first.experiment, rounds=30)
    records = [
        replace(recorded(first), identity=identity_of(longer)),
        replace(recorded(first), seed=1),
        replace(recorded(first), identity="of something else"),
        recorded(runs(scale="small")[0], scale="small"),
    ]
    assert missing_runs(runs(), records) == runs()


def test_different_runs_are_those_with_another_method_schedule_or_model() -> None:
    assert [run.experiment.method["name"] for run in one_run_per_program(runs(seeds=3))] == [
        "fedavg",
        "fedprox",
    ]
    assert len(one_run_per_program(runs() + runs("digits-table2"))) == 2
    others: list[dict[str, Any]] = [
        {"model": "mlp(hidden=[10])"},
        {"schedule": "fedbug(ratio=0.5)"},
        {"then": [{"at": 5, "method": {"name": "feddyn"}}]},
    ]
    every = [run for one in others for run in runs_of(table_of("digits-table1", one), "full", [0], Path())]
    assert len(one_run_per_program(runs() + every)) == 2 * (1 + len(others))
    ratios = [
        run
        for ratio in (0.2, 0.8)
        for run in runs_of(
            table_of("digits-table1", {"schedule": f"fedbug(ratio={ratio})"}), "full", [0], Path()
        )
    ]
    assert len(one_run_per_program(ratios)) == 2  # methods that differ in numbers count once


def names_of(*filters: str) -> list[str]:
    return [cell.name.replace("clients-4", "").strip("-") for cell in select_cells(table(), filters).cells]


IID = ["method=fedavg,partition=iid", "method=fedprox-mu-1.0,partition=iid"]


@pytest.mark.parametrize(
    ("filters", "expected"),
    [
        (["partition=iid*"], IID),
        (["partition=iid(clients=?)"], IID),
        (["column=IID"], IID),
        (["block=equal"], IID),
        (["column=?ID"], IID),
        ([" column = IID "], IID),
        (["row=Avg", "column=IID"], IID[:1]),
        (["row=P*", "partition=iid*", "block=eq*l"], IID[1:]),
        (["method=fedprox(mu=1.0)", "column=IID"], IID[1:]),
    ],
)
def test_filters_select_by_keys_of_the_grid_and_by_the_words_of_the_print(
    filters: list[str], expected: list[str]
) -> None:
    assert names_of(*filters) == expected


def test_a_filter_is_of_the_whole_value_in_its_case() -> None:
    for pattern in ("row=A", "row=avg", "partition=iid", "row=*v", "column=?"):
        with pytest.raises(RequestError, match=r"no cell of digits-table1 is selected"):
            names_of(pattern)


def test_a_bracket_in_a_filter_is_a_bracket(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    table = table_of("layer-expansion-section53", {})
    wanted = "vanilla(thaw=[0, 50, 100]) + fedbabu"
    found = select_cells(table, [f"method={wanted}", "data=cifar*"]).cells
    assert [cell.settings["method"] for cell in found] == [wanted]


def test_a_cell_of_several_printed_numbers_is_selected_by_any_of_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.undo()
    whole = table_of("layer-expansion-table2", {})
    columns = [f"MNIST, T = {rounds}" for rounds in (100, 200, 300)]
    found = [select_cells(whole, ["row=FedAvg", f"column={column}"]).cells for column in columns]
    assert [len(cells) for cells in found] == [1, 1, 1]
    assert found[0] == found[1] == found[2]


def test_selected_cells_leave_the_printed_table_whole() -> None:
    assert select_cells(table(), ["row=Avg"]).paper == table().paper


@pytest.mark.parametrize("text", ["methd=fedavg", "fedavg", "optimizer.lr=0.1", ""])
def test_a_filter_with_an_unknown_key_is_refused_with_the_keys_that_there_are(text: str) -> None:
    with pytest.raises(RequestError) as error:
        select_cells(table(), [text])
    assert "KEY is one of method, partition, block, row, column." in str(error.value)
    assert ("Did you mean 'method'?" in str(error.value)) == (text.startswith("methd"))
