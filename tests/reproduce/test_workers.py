"""Runs of a table that train side by side in processes of their own, on the CPU."""

import multiprocessing
import os
import tempfile
import time
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import pytest
from tests.reproduce.digits_tables import options, recorded, runs, ship, write_tables

from kedge.reproduce.plan import missing_runs
from kedge.reproduce.records import read_records, write_record
from kedge.reproduce.work import TrainedRun, train
from kedge.running.progress import Interrupted


@pytest.fixture(autouse=True)
def temporary(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """The folder for temporary files; the tables are those of digits."""
    ship(monkeypatch, write_tables(tmp_path / "tables"))
    (tmp_path / "tmp").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "tmp"))
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    return tmp_path / "tmp"


class Side(NamedTuple):
    """The runs of both tables of digits, trained by two processes."""

    ends: dict[str, TrainedRun]
    alone: dict[str, TrainedRun]  # the same in one process
    processes: set[int | None]
    rounds: list[int]  # as reported to the callback
    left: list[Path]  # temporary folders, afterwards


def by_name(ends: Iterable[TrainedRun]) -> dict[str, TrainedRun]:
    return {end.run.name: end for end in ends}


@pytest.fixture(scope="module")
def side(tmp_path_factory: pytest.TempPathFactory) -> Side:
    top = tmp_path_factory.mktemp("side")
    processes: set[int | None] = set()
    rounds: list[int] = []

    def count_rounds(count: int) -> None:
        rounds.append(count)
        processes.update(process.pid for process in multiprocessing.active_children())

    with pytest.MonkeyPatch.context() as monkeypatch:
        ship(monkeypatch, write_tables(top / "tables"))
        monkeypatch.setattr(tempfile, "tempdir", str(top))
        monkeypatch.setenv("OMP_NUM_THREADS", "1")
        every = missing_runs(runs() + runs("digits-table2"), [])
        ends = by_name(train(every, options(workers=2, report_rounds=count_rounds)))
        return Side(
            ends, by_name(train(every, options())), processes, rounds, list(top.glob("kedge-reproduce-*"))
        )


@pytest.mark.slow
def test_two_processes_give_the_records_of_one(side: Side) -> None:
    assert side.ends.keys() == side.alone.keys()
    found = {name: end.record for name, end in side.ends.items() if end.record}
    assert len(found) == 5
    for name, record in found.items():
        assert replace(record, elapsed=0) == replace(recorded(side.alone[name].record), elapsed=0)


@pytest.mark.slow
def test_runs_train_in_other_processes_which_end(side: Side) -> None:
    assert len(side.processes) == 2
    assert os.getpid() not in side.processes
    assert not multiprocessing.active_children()
    assert not side.left


@pytest.mark.slow
def test_the_rounds_of_all_processes_are_counted(side: Side) -> None:
    assert side.rounds == sorted(side.rounds)
    assert 0 < side.rounds[-1] <= 4 * 20 + 1


def test_a_run_that_fails_in_a_process_leaves_the_others_alone(side: Side) -> None:
    failed = {name: end for name, end in side.ends.items() if not end.record}
    assert len(failed) == 2
    for name, end in failed.items():
        assert "data=no-such-data" in name
        assert "Put no-such-data.npz into a folder and name it" in end.error
        assert end.error == side.alone[name].error
        assert "DataError" in end.trace


def test_a_run_that_diverges_in_a_process_is_recorded(side: Side) -> None:
    (end,) = [end for end in side.ends.values() if end.record and end.record.diverged]
    assert end.run.experiment.optimizer["lr"] == 1e300
    assert "fedprox diverged in round 1" in end.error


@pytest.mark.slow
def test_runs_of_a_killed_process_fail_with_a_remedy_and_recorded_ones_stay(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, temporary: Path
) -> None:
    ship(monkeypatch, write_tables(tmp_path / "long", rounds=100))
    every, out = runs(seeds=2), tmp_path / "out"
    failed: list[TrainedRun] = []
    for end in train(every, options(workers=2, pack=1)):
        if end.record:
            write_record(out / "digits-table1/sitting.jsonl", end.record)
        else:
            failed.append(end)
        for process in multiprocessing.active_children()[:1]:
            process.kill()
    records = read_records(out)
    assert records
    assert failed
    assert {end.error for end in failed} == {
        "a process that trained ended suddenly; the system may have had too little memory for it. "
        "Try again with fewer: --workers N"
    }
    assert len(records) + len(failed) == len(every)
    assert {run.key for run in missing_runs(every, records)} == {end.run.key for end in failed}
    assert not multiprocessing.active_children()
    assert not list(temporary.glob("kedge-*"))


@pytest.mark.slow
def test_processes_stop_after_the_round_at_hand(temporary: Path) -> None:
    rounds: list[int] = []
    ended: list[TrainedRun] = []

    def work() -> None:
        many = options(
            workers=2, pack=1, report_rounds=rounds.append, stop=lambda: bool(rounds and rounds[-1])
        )
        ended.extend(train(runs(seeds=20), many))

    with pytest.raises(Interrupted):
        work()
    assert len(ended) < 40
    assert not multiprocessing.active_children()
    assert not list(temporary.glob("kedge-*"))


@pytest.mark.slow
def test_processes_that_nobody_waits_for_are_ended_amid_a_round(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, temporary: Path
) -> None:
    ship(monkeypatch, write_tables(tmp_path / "long", epochs=20000))  # a round of minutes
    began: list[float] = []

    def interrupt_when_training(rounds: int) -> None:
        if len(list(temporary.glob("*/*/environment.json"))) >= 2:
            began.append(time.monotonic())
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        list(train(runs(), options(workers=2, report_rounds=interrupt_when_training)))
    assert time.monotonic() - began[0] < 10
    assert not multiprocessing.active_children()
    assert not list(temporary.glob("kedge-*"))
