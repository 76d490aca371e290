"""The files of records: several sittings add up, and damage is reported."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.reproduce.tables import a_record

from kedge.core.errors import DataError
from kedge.reproduce.records import curves_of, new_file_name, read_records, sitting_seconds, write_record

RECORD = a_record("of A/x", 0, [(10, 0.5), (20, 0.75)], cell={"method": "fedavg", "partition.alpha": 0.3})


def test_a_record_is_read_as_it_was_written(tmp_path: Path) -> None:
    write_record(tmp_path / "small/one.jsonl", RECORD)
    write_record(tmp_path / "small/one.jsonl", replace(RECORD, seed=1, diverged=True))
    found = read_records(tmp_path)
    assert [record.key for record in found] == [("of A/x", 0), ("of A/x", 1)]
    assert [tuple(pair) for pair in found[0].history["all.global.accuracy"]] == [(10, 0.5), (20, 0.75)]
    plain: Any = {"all.global.accuracy": [[10, 0.5], [20, 0.75]]}
    assert found[0] == replace(RECORD, history=plain)
    assert found[1] == replace(RECORD, history=plain, seed=1, diverged=True)


def test_sittings_and_tables_add_up_and_the_first_record_of_a_run_counts(tmp_path: Path) -> None:
    for file, precision, seed in (
        ("small/2025-02.jsonl", "tf32", 0),
        ("small/2025-01.jsonl", "fp64", 0),
        ("other/2025-03.jsonl", "fp32", 1),
    ):
        write_record(tmp_path / file, replace(RECORD, precision=precision, seed=seed))
    (tmp_path / "small.md").write_text("a page")
    found = {record.seed: record.precision for record in read_records(tmp_path)}
    assert found == {0: "fp64", 1: "fp32"}


def test_a_line_that_a_killed_process_left_incomplete_does_not_count(tmp_path: Path) -> None:
    file = tmp_path / "small/one.jsonl"
    write_record(file, RECORD)
    whole = file.read_bytes()
    write_record(file, replace(RECORD, seed=1))
    for length in (len(whole) + 1, len(whole) + 100, file.stat().st_size - 1):
        file.write_bytes(file.read_bytes()[:length].ljust(length, b"x"))
        assert [record.seed for record in read_records(tmp_path)] == [0]


@pytest.mark.parametrize("line", ["no json", "{}", '{"table": "small"}', "[1]", ""])
def test_a_damaged_line_is_told_with_its_number_and_a_remedy(line: str, tmp_path: Path) -> None:
    file = tmp_path / "small/one.jsonl"
    write_record(file, RECORD)
    with file.open("a") as out:
        out.write(f"{line}\n")
    with pytest.raises(DataError, match=r"small/one\.jsonl, line 2 is damaged .* Remove the line\."):
        read_records(tmp_path)


def test_a_folder_without_records_has_none(tmp_path: Path) -> None:
    assert not read_records(tmp_path)
    assert not read_records(tmp_path / "nowhere")


def test_curves_are_the_accuracies_and_losses_of_the_evaluated_rounds() -> None:
    history: list[dict[str, Any]] = [
        {"round": 1, "loss": 2.0, "clients": [0]},
        {"round": 2, "all.global.accuracy": 0.12345678, "all.global.loss": 1.5, "method": "fedavg"},
        {"round": 4, "all.global.accuracy": 1, "features.clusters": 7, "personal.local.accuracy": None},
    ]
    assert curves_of(history) == {
        "all.global.accuracy": [(2, 0.123457), (4, 1.0)],
        "all.global.loss": [(2, 1.5)],
        "features.clusters": [(4, 7.0)],
    }


def test_a_sitting_lasts_until_the_end_of_its_last_run() -> None:
    other = replace(RECORD.sitting, started="2025-04-01T10:00:00Z")
    records = [replace(RECORD, elapsed=seconds) for seconds in (5.0, 9.0, 7.0)]
    records.append(replace(RECORD, elapsed=3.0, sitting=other))
    assert sitting_seconds(records) == {RECORD.sitting: 9.0, other: 3.0}


def test_two_sittings_of_the_same_second_have_different_files() -> None:
    one, other = (new_file_name(RECORD.sitting) for _ in range(2))
    assert one != other
    assert one.endswith(".jsonl")
    assert not set(":/") & set(one)
