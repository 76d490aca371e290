"""kedge reproduce with missing or wrong input, and --scale smoke."""

import signal
import tempfile
from pathlib import Path

import pytest
from tests.cli.command import kedge
from tests.reproduce.digits_tables import ship, write_tables

from kedge.cli.actions.reproduce_progress import Board
from kedge.reproduce.plan import Run
from kedge.reproduce.records import Record, read_records

TABLE = "digits-table2"  # of its four runs two have no data, and one diverges
REMEDY = "Put no-such-data.npz into a folder and name it by the environment variable KEDGE_DATA"
SMOKE = ("fedtr-table1", "--scale", "smoke", "--cells", "data=organamnist", "--cells", "method=fedtr*")


@pytest.fixture
def out(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """The folder of results; the tables are those of digits."""
    ship(monkeypatch, write_tables(tmp_path / "tables"))
    (tmp_path / "tmp").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "tmp"))
    monkeypatch.chdir(tmp_path)
    return tmp_path / "out"


@pytest.mark.slow
def test_an_error_is_told_once_with_its_remedy_and_the_other_runs_are_recorded(out: Path) -> None:
    answer = kedge("reproduce", TABLE, "--seeds", "2", "--out", out)
    assert answer.code == 1
    assert "error: 4 runs: dataset 'no-such-data'" in answer.err
    assert answer.err.count(REMEDY) == 2  # when it occurs, and in the last line
    assert answer.err.count(": the same error\n") == 3
    assert answer.err.count(": done\n") == answer.err.count(": diverged\n") == 2
    assert "Traceback" not in answer.err
    assert ["measured", "diverged", "–"] in [line.split() for line in answer.out.splitlines()]
    assert sorted(record.diverged for record in read_records(out)) == [False, False, True, True]
    again = kedge("reproduce", TABLE, "--seeds", "2", "--quiet", "--out", out)
    assert (again.code, again.out) == (1, "")
    assert again.err.count(REMEDY) == 1
    assert again.err.startswith("error: 4 runs: ")
    assert len(read_records(out)) == 4


def test_debug_shows_the_traceback_of_an_error_once(out: Path) -> None:
    words = ("--seeds", "2", "--cells", "column=missing", "--quiet", "--debug")
    answer = kedge("reproduce", TABLE, *words, "--out", out)
    assert answer.code == 1
    assert answer.err.count("Traceback (most recent call last)") == 1
    assert not out.exists()


@pytest.mark.slow
def test_all_tables_train_a_run_that_they_share_once(out: Path) -> None:
    answer = kedge("reproduce", "all", "--seeds", "1", "--out", out)
    assert answer.code == 1
    assert answer.err.count("seed 0: ") == 4 + 3
    assert {record.table for record in read_records(out)} == {"digits-table1", TABLE}
    assert len(read_records(out)) == 4 + 1
    assert answer.out.count("printed") >= 2


@pytest.mark.parametrize("scale", ["full", "smoke"])
def test_a_printed_number_without_a_run_is_told_before_anything_trains(scale: str, out: Path) -> None:
    numbers = out.parent / "tables/published/digits-table1.csv"
    numbers.write_text(numbers.read_text().replace("81,fedprox(mu=1.0)", "81,fedprox(mu=2.0)"))
    answer = kedge("reproduce", "digits-table1", "--scale", scale, "--out", out)
    assert (answer.code, answer.out) == (3, "")
    assert "Prox, α = 0.3: 0 cells of the grid have method=fedprox(mu=2.0)" in answer.err
    assert not out.exists()


def test_a_readme_of_someone_else_is_noticed_before_anything_trains(out: Path) -> None:
    out.mkdir()
    (out / "README.md").write_text("# My notes\n")
    answer = kedge("reproduce", "digits-table1", "--seeds", "1", "--out", out)
    assert answer.code == 2
    assert "README.md" in answer.err
    assert [path.name for path in out.iterdir()] == ["README.md"]


def test_a_damaged_record_is_told_before_anything_trains(out: Path) -> None:
    (out / "digits-table1").mkdir(parents=True)
    (out / "digits-table1/one.jsonl").write_text("no json\n")
    answer = kedge("reproduce", "digits-table1", "--out", out)
    assert (answer.code, answer.out) == (3, "")
    assert "one.jsonl, line 1 is damaged" in answer.err


def test_smoke_trains_on_made_data_and_records_nothing(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("KEDGE_DATA", str(tmp_path / "no data"))
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    answer = kedge("reproduce", *SMOKE)
    assert (answer.code, answer.out) == (0, "")
    assert answer.err.count(": done\n") == 2
    last = answer.err.splitlines()[-1]
    assert last.startswith(
        "2 of 2 different runs of 1 tables trained two rounds on synthetic data, and all 2 cells resolve ("
    )
    assert not list(tmp_path.glob("kedge-*"))
    assert not list((tmp_path / "here").iterdir())


@pytest.mark.slow
def test_smoke_as_json_says_what_trained(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    answer = kedge("reproduce", *SMOKE, "--json")
    found = answer.json()
    assert (answer.code, answer.err) == (0, "")
    assert found.pop("seconds") > 0
    assert found == {"tables": [SMOKE[0]], "trained": 2, "failed": 0, "resolved": 2}
    assert kedge("reproduce", *SMOKE, "--quiet") == (0, "", "")


def test_smoke_fails_if_a_run_does(out: Path) -> None:
    answer = kedge("reproduce", TABLE, "--scale", "smoke", "--cells", "column=missing", "--json")
    assert answer.code == 1
    assert (answer.json()["trained"], answer.json()["failed"]) == (0, 2)
    assert "error: 2 runs: dataset 'no-such-data'" in answer.err


def test_an_interrupted_smoke_test_says_that_nothing_is_recorded(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    finished = Board.count_run

    def count_and_interrupt(board: Board, run: Run, record: Record | None, error: str) -> None:
        finished(board, run, record, error)
        signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(Board, "count_run", count_and_interrupt)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    answer = kedge("reproduce", *SMOKE)
    assert (answer.code, answer.out) == (130, "")
    assert answer.err.count(": done\n") == 1
    assert answer.err.splitlines()[-1] == (
        "interrupted; nothing is recorded at scale smoke. Start again with: kedge reproduce fedtr-table1 "
        "--scale smoke --cells data=organamnist --cells 'method=fedtr*'"
    )
    assert not list(tmp_path.glob("kedge-*"))
