"""Printed and measured numbers, place by place."""

from statistics import mean, stdev

import pytest
from tests.reproduce.tables import ACCURACY, a_paper, a_record, an_entry, fedbug, measured_with

from kedge.reproduce.measured import Measured, Place


def only(measured: Measured) -> Place:
    (place,) = measured.places
    return place


PAPER = a_paper([an_entry("A", "x", 80.0)])


def test_a_place_has_the_numbers_of_all_seeds_in_percent() -> None:
    values = {2: 0.81, 0: 0.79, 1: 0.83}
    records = [a_record("of A/x", seed, [(10, 0.5), (300, value)]) for seed, value in values.items()]
    measured = measured_with(PAPER, records)
    place = only(measured)
    assert list(place.by_seed) == [0, 1, 2]
    assert place.values == pytest.approx([79.0, 83.0, 81.0])
    assert place.mean == pytest.approx(mean([79.0, 83.0, 81.0]))
    assert place.std == pytest.approx(stdev([79.0, 83.0, 81.0]))
    assert place.difference == pytest.approx(1.0)
    assert measured.mean_absolute_difference == pytest.approx(1.0)
    assert measured.seeds == [0, 1, 2]
    assert len(measured.records) == 3
    assert measured.place("", "A", "x") is place
    assert measured.place("", "A", "y") is None


@pytest.mark.slow
def test_runs_of_another_identity_scale_or_seed_do_not_count() -> None:
    curve = [(300, 0.8)]
    records = [
        a_record("of A/x", 0, curve),
        a_record("of A/x", 1, curve, scale="small"),
        a_record("of something else", 2, curve),
        a_record("of A/x", 3, curve),
    ]
    assert list(only(measured_with(PAPER, records)).by_seed) == [0, 3]
    assert list(only(measured_with(PAPER, records, seeds=[3, 4])).by_seed) == [3]
    assert list(only(measured_with(PAPER, records, "small")).by_seed) == [1]


def test_a_run_made_for_another_table_counts() -> None:
    assert only(measured_with(PAPER, [a_record("of A/x", 0, [(300, 0.8)], table="other")])).values


def test_a_place_without_runs_is_empty() -> None:
    measured = measured_with(PAPER, [])
    place = only(measured)
    assert (place.mean, place.std, place.difference, measured.mean_absolute_difference) == (None,) * 4


def test_a_run_without_the_metric_says_nothing_about_the_place() -> None:
    record = a_record("of A/x", 0, [], history={"distributed.global.accuracy": [(300, 0.8)]})
    measured = measured_with(PAPER, [record])
    assert not only(measured).by_seed
    assert not measured.records


def test_there_is_no_mean_if_a_run_diverged() -> None:
    records = [a_record("of A/x", 0, [(300, 0.8)]), a_record("of A/x", 1, [(10, 0.1)], diverged=True)]
    place = only(measured_with(PAPER, records))
    assert place.by_seed == {0: pytest.approx(80.0), 1: None}
    assert place.mean is None


def test_the_best_and_a_given_round_are_read_where_the_paper_reports_them() -> None:
    curve = [(100, 0.7), (200, 0.9), (300, 0.8)]
    entries = [an_entry("A", "best", 1, at="best"), an_entry("A", "100", 1, at="100")]
    records = [a_record(f"of A/{name}", 0, curve) for name in ("best", "100")]
    assert [one.values for one in measured_with(a_paper(entries), records).places] == [[90.0], [70.0]]


@pytest.mark.parametrize(("at", "expected", "read"), [("300", 80.0, "last"), ("150", 60.0, "10")])
def test_a_shortened_run_is_read_at_the_corresponding_round(at: str, expected: float, read: str) -> None:
    """The run has 30 of 300 rounds and evaluates every tenth: round 150 becomes 15, so round 10 is read."""
    paper = a_paper([an_entry("A", "x", 80.0, at=at)])
    curve = [(10, 0.6), (20, 0.7), (30, 0.8)]
    place = only(measured_with(paper, [a_record("of A/x", 0, curve, rounds=30, scale="small")], "small"))
    assert (place.values, place.at) == ([expected], read)


def test_rounds_to_a_target_have_no_difference_in_shortened_runs() -> None:
    paper = a_paper([an_entry("A", "x", 120, target=0.75)])
    curve = [(10, 0.6), (20, 0.7), (30, 0.8)]
    full = only(measured_with(paper, [a_record("of A/x", 0, curve)]))
    assert (full.values, full.difference, full.comparable) == ([30.0], -90.0, True)
    small = only(measured_with(paper, [a_record("of A/x", 0, curve, rounds=30, scale="small")], "small"))
    assert (small.values, small.difference, small.comparable) == ([30.0], None, False)


def test_every_place_of_a_shipped_table_is_matched_with_its_own_cell() -> None:
    measured = fedbug(seeds=1)
    assert len({place.cell for place in measured.places}) == 80
    assert all(abs(place.difference or 9) <= 0.5 + 1e-9 for place in measured.places)
    assert ACCURACY in measured.records[0].history
