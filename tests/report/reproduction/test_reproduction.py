"""A reproduced table as plain values: it has every number, and JSON preserves all values."""

import json
from dataclasses import replace
from statistics import mean, stdev

import pytest
from tests.report.reproduction.reproduced import mixed
from tests.reproduce.tables import a_paper, an_entry, fedbug, measured_with

from kedge.report.reproduction.values import as_dict, overview
from kedge.reproduce.claims import judge_claims
from kedge.reproduce.measured import Measured


def as_json(measured: Measured) -> str:
    return json.dumps(as_dict(measured, judge_claims(measured)), allow_nan=False)


@pytest.mark.parametrize("scale", ["full", "small"])
def test_json_gives_the_same_values_back(scale: str) -> None:
    measured = mixed(scale)
    assert json.loads(as_json(measured)) == as_dict(measured, judge_claims(measured))


def test_every_number_of_every_seed_is_in_the_values() -> None:
    measured = fedbug(seeds=3, places=70)
    table = json.loads(as_json(measured))["table"]
    assert len(table) == 80
    for place, row in zip(measured.places, table, strict=True):
        names = (place.entry.block, place.entry.row, place.entry.column)
        assert (row["block"], row["row"], row["column"], row["printed"]) == (*names, place.entry.value)
        assert row["by_seed"] == {str(seed): value for seed, value in place.by_seed.items()}
        values = list(row["by_seed"].values())
        assert row["mean"] == (mean(values) if values else None)
        assert row["std"] == (stdev(values) if values else None)
        assert row["difference"] == (row["mean"] - row["printed"] if values else None)
    assert [len(row["by_seed"]) for row in table] == [3] * 70 + [0] * 10


def test_a_run_without_a_number_is_null_and_a_bound_is_text() -> None:
    rows = as_dict(mixed(), [])["table"]
    table = {(row["row"], row["column"]): row for row in rows}
    diverged = table["A|B", "x, α = 0.3"]
    assert (diverged["by_seed"]["1"], diverged["mean"], diverged["difference"]) == (None, None, None)
    bound = table["A|B", "rounds to 75 %"]
    assert (bound["printed"], bound["printed_bound"], bound["target"]) == (None, ">200", 0.75)
    assert bound["by_seed"] == {"0": None, "1": 300.0, "2": 300.0}
    assert table["A|B", "x, IID"]["printed_std"] == 0.5
    assert table["A|B", "x, IID"]["printed_bound"] is None


def test_a_shortened_run_says_where_it_was_read_and_what_cannot_be_compared() -> None:
    rows = as_dict(mixed("small"), [])["table"]
    table = {(row["row"], row["column"]): row for row in rows}
    assert (table["A|B", "round 150"]["at"], table["A|B", "round 150"]["read_at"]) == ("150", "15")
    assert [row["comparable"] for row in rows] == [row["target"] is None for row in rows]


def test_claims_have_their_verdict_test_and_comparisons() -> None:
    measured = mixed()
    (claim,) = as_dict(measured, judge_claims(measured))["claims"]
    (judgment,) = judge_claims(measured)
    assert claim["says"] == "A|B is above <C*>."
    assert (claim["verdict"], claim["label"]) == ("within noise", "within noise (1 of 2 measured)")
    assert judgment.test is not None
    assert (claim["p"], claim["opposite_p"]) == (judgment.test.p, judgment.test.opposite_p)
    first, second = claim["comparisons"]
    assert first["by_seed"] == {"0": pytest.approx(79 - 62.5)}
    assert (first["printed"], first["unit"]) == (True, "points")
    assert (second["difference"], second["by_seed"]) == (None, {})


def test_sittings_are_listed_by_date_with_their_runs_and_seconds() -> None:
    measured = fedbug(seeds=2, places=3)
    first, *others = measured.records
    later = replace(first.sitting, started="2025-03-02T10:00:00Z", hardware="CPU")
    moved = [replace(one, sitting=later, elapsed=7.0, precision="bf16") for one in others[:2]]
    both = replace(measured, records=(*moved, first, *others[2:]))
    rows = as_dict(both, [])["sittings"]
    assert [(row["started"][:10], row["runs"]) for row in rows] == [("2025-03-01", 4), ("2025-03-02", 2)]
    assert [row["seconds"] for row in rows] == [120.0, 7.0]
    assert [row["precisions"] for row in rows] == [["fp32"], ["bf16"]]
    (summary,) = overview([(both, [])])
    assert summary["seconds"] == 127.0
    assert summary["hardware"] == ["CPU", "NVIDIA H200"]


def test_the_overview_counts_numbers_runs_and_verdicts() -> None:
    measured = mixed()
    nothing = measured_with(a_paper([an_entry("A", "x", 1.0)]), [])
    (some, none) = overview([(measured, judge_claims(measured)), (nothing, [])])
    assert (some["places"], some["measured"], some["runs"], some["seeds"]) == (9, 7, 19, [0, 1, 2])
    assert some["mean_absolute_difference"] == pytest.approx(mean([0.0, 1.0, 2.5]))
    assert some["verdicts"] == {"within noise": 1}
    assert (none["measured"], none["runs"], none["seeds"], none["verdicts"]) == (0, 0, [], {})
    assert (none["mean_absolute_difference"], none["seconds"], none["hardware"]) == (None, 0, [])
