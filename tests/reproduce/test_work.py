"""Runs of a table that train in this process: records, errors, temporary folders, interruption."""

import tempfile
import time
from dataclasses import replace
from pathlib import Path

import pytest
from tests.reproduce.digits_tables import SITTING, options, recorded, runs, ship, write_tables

import kedge
from kedge.reproduce.plan import Run
from kedge.reproduce.records import curves_of
from kedge.reproduce.work import by_program, rounds_in, train
from kedge.running.packs.grouping import groups
from kedge.running.progress import Interrupted
from kedge.running.requests import RunRequest


@pytest.fixture(autouse=True)
def temporary(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """The folder for temporary files; the tables are those of digits."""
    ship(monkeypatch, write_tables(tmp_path / "tables"))
    (tmp_path / "tmp").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "tmp"))
    return tmp_path / "tmp"


@pytest.mark.slow
@pytest.mark.parametrize(("pack", "cells"), [(0, slice(4)), (1, slice(1, 3))])
def test_records_have_the_numbers_of_kedge_run_with_the_same_config(
    pack: int, cells: slice, tmp_path: Path
) -> None:
    ends = list(train(runs()[cells], options(pack=pack)))
    assert {end.run.name for end in ends} == {run.name for run in runs()[cells]}
    for end in ends:
        record = recorded(end.record)
        (tmp_path / "alone.toml").write_text(end.run.experiment.toml())
        history = kedge.run(tmp_path / "alone.toml", progress=False).history
        assert record.history == curves_of(history)
        assert [round for round, _ in record.history["all.global.accuracy"]] == [10, 20]
        assert record.samples == sum(line["cost"]["samples"] for line in history)
        assert record.rounds == len(history) == 20


@pytest.mark.slow
def test_a_record_describes_its_run_and_its_sitting() -> None:
    began = time.monotonic()
    ends = list(train(runs(seeds=2), options()._replace(start=began)))
    for run, record, error, _ in ends:
        found = recorded(record)
        assert (found.table, found.cell, found.seed) == (run.table, run.cell.settings, run.experiment.seed)
        assert (found.scale, found.identity, found.key) == ("full", run.identity, run.key)
        assert (found.precision, found.sitting, found.diverged, error) == ("fp64", SITTING, False, "")
    elapsed = [recorded(end.record).elapsed for end in ends]
    assert elapsed == sorted(elapsed)
    assert 0 < elapsed[-1] <= time.monotonic() - began + 0.1


def test_a_small_run_is_recorded_with_its_rounds() -> None:
    (end,) = train(runs(scale="small")[:1], options())
    record = recorded(end.record)
    assert (record.rounds, record.scale) == (2, "small")
    assert [round for round, _ in record.history["all.global.accuracy"]] == [1, 2]


@pytest.mark.slow
def test_runs_that_fail_give_an_error_with_its_remedy_and_the_others_go_on() -> None:
    every = runs("digits-table2", seeds=2)
    ends = list(train(every, options()))
    assert len(ends) == len(every) == 8
    failed = [end for end in ends if end.record is None]
    assert {end.run.experiment.data["name"] for end in failed} == {"no-such-data"}
    assert len(failed) == 4
    for end in failed:
        assert "Put no-such-data.npz into a folder and name it" in end.error
        assert "DataError" in end.trace


def test_a_run_that_diverges_has_a_record_that_says_so() -> None:
    ends = [end for end in train(runs("digits-table2"), options()) if end.record]
    whole, diverged = sorted(ends, key=lambda end: recorded(end.record).diverged)
    assert (recorded(whole.record).diverged, recorded(whole.record).rounds) == (False, 20)
    assert recorded(diverged.record).diverged
    assert recorded(diverged.record).rounds < 20
    assert "fedprox diverged in round 1" in diverged.error


@pytest.mark.slow
def test_a_run_has_a_folder_only_while_the_work_goes_on(temporary: Path) -> None:
    counts = []
    for _ in train(runs(), options(pack=1)):
        (top,) = temporary.glob("kedge-*")
        counts.append(sorted(rounds_in(folder) for folder in top.iterdir()))
    assert counts == [[20] * number for number in (1, 2, 3, 4)]
    assert not list(temporary.glob("kedge-*"))
    list(train(runs("digits-table2"), options()))
    assert not list(temporary.glob("kedge-*"))


def test_work_that_is_given_up_removes_its_folders(temporary: Path) -> None:
    ends = train(runs(), options(pack=1))
    next(ends)
    assert list(temporary.glob("kedge-*"))
    ends.close()
    assert not list(temporary.glob("kedge-*"))


@pytest.mark.slow
def test_a_run_saves_no_checkpoints(temporary: Path) -> None:
    for _ in train(runs()[:1], options()):
        assert list(temporary.glob("*/*/history.jsonl"))
        assert not list(temporary.glob("*/*/checkpoint*"))


@pytest.mark.slow
@pytest.mark.parametrize("pack", [0, 1])
def test_work_that_is_stopped_ends_after_the_round_and_hands_over_what_is_finished(
    pack: int, temporary: Path
) -> None:
    """The first pack trains the two runs of FedAvg at once; the stop is requested in the next pack or run."""
    ended: list[Run] = []
    calls_after_end = []

    def stop() -> bool:
        if ended:
            calls_after_end.append(True)
        return len(calls_after_end) > 5

    def work() -> None:
        for end in train(runs(), options(pack=pack, stop=stop)):
            assert recorded(end.record).rounds == 20
            ended.append(end.run)

    with pytest.raises(Interrupted):
        work()
    assert 1 <= len(ended) < 4
    assert not list(temporary.glob("kedge-*"))


def test_no_run_at_all_is_no_work() -> None:
    assert not list(train([], options()))


def test_jobs_that_begin_together_have_different_methods_and_schedules() -> None:
    """One job for each method and schedule is first; jobs with a schedule precede jobs without."""
    first = runs()[0].experiment
    kinds = [
        ("fedavg", "all"),
        ("fedavg", "all"),
        ("feddyn", "all"),
        ("fedavg", "fedbug"),
        ("fedavg", "fedbug"),
    ]
    jobs = []
    for number, (method, schedule) in enumerate(kinds):
        experiment = replace(first, method={"name": method}, schedule={"name": schedule})
        jobs.append([RunRequest(Path(str(number)), experiment)])
    assert [str(job[0].folder) for job in by_program(jobs)] == ["3", "0", "2", "4", "1"]


def test_an_order_of_jobs_keeps_all_of_them() -> None:
    members = [RunRequest(Path(str(number)), run.experiment) for number, run in enumerate(runs(seeds=3))]
    jobs = groups(members)
    assert sorted(map(str, by_program(jobs))) == sorted(map(str, jobs))
