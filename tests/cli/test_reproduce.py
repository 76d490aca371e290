"""kedge reproduce as a user types it: tables of digits that train for real."""

import json
import shutil
import tempfile
from pathlib import Path

import pytest
from tests.cli.command import Answer, kedge
from tests.reproduce.digits_tables import ship, write_tables

from kedge.reproduce.paper import names
from kedge.reproduce.records import read_records

TABLE = "digits-table1"
ONE = ("--cells", "row=Avg", "--cells", "column=IID")  # one of the four cells


@pytest.fixture
def out(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """The folder of results; the tables are those of digits."""
    ship(monkeypatch, write_tables(tmp_path / "tables"))
    (tmp_path / "tmp").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "tmp"))
    monkeypatch.chdir(tmp_path)
    return tmp_path / "out"


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Answer]:
    """A table that was trained with one seed, and the output of the command."""
    top = tmp_path_factory.mktemp("whole")
    with pytest.MonkeyPatch.context() as monkeypatch:
        ship(monkeypatch, write_tables(top / "tables"))
        return top / "out", kedge("reproduce", TABLE, "--seeds", "1", "--out", top / "out")


def contents(folder: Path) -> dict[str, bytes]:
    return {str(file.relative_to(folder)): file.read_bytes() for file in folder.rglob("*") if file.is_file()}


def lines(folder: Path) -> int:
    return sum(file.read_bytes().count(b"\n") for file in folder.glob("*/*.jsonl"))


@pytest.mark.slow
def test_without_a_name_the_tables_are_listed(tmp_path: Path) -> None:
    answer = kedge("reproduce", "--out", tmp_path)
    assert (answer.code, answer.err) == (0, "")
    assert all(name in answer.out for name in names())
    rows = kedge("reproduce", "--out", tmp_path, "--json").json()
    assert [row["name"] for row in rows] == names()
    assert all(row["measured"] == 0 < row["places"] for row in rows)
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
def test_the_list_has_what_is_measured(out: Path, whole: tuple[Path, Answer]) -> None:
    first, second = kedge("reproduce", "--out", whole[0], "--json").json()
    assert (first["name"], first["places"], first["measured"], first["runs"]) == (TABLE, 4, 4, 4)
    assert first["seeds"] == [0]
    assert first["seconds"] > 0
    # The two tables have one run in common.
    assert (second["name"], second["places"], second["measured"], second["runs"]) == (
        "digits-table2",
        4,
        1,
        1,
    )


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["digits-tabel1"], "no table 'digits-tabel1' to reproduce. Did you mean 'digits-table1'?"),
        ([TABLE, "--seeds", "0"], "--seeds 0: need at least 1."),
        ([TABLE, "--seeds", "-1"], "--seeds -1: need at least 1."),
        ([TABLE, "--workers", "-1"], "--workers -1: need 0"),
        ([TABLE, "--pack", "-1"], "--pack -1: need 0"),
        ([TABLE, "--scale", "smal"], "--scale smal: no such scale. Did you mean 'small'?"),
        ([TABLE, "--cells", "rows=Avg"], "KEY is one of method, partition, block, row, column."),
        ([TABLE, "--cells", "row=Avgs"], "--cells row=Avgs: no cell of digits-table1 is selected."),
        (["all", "--cells", "row=Avg"], "--cells: the keys differ from table to table, so name one table."),
        ([TABLE, "--engine", "stack"], "engine.name"),
    ],
)
def test_a_request_that_cannot_be_right_is_refused(words: list[str], told: str, out: Path) -> None:
    answer = kedge("reproduce", *words, "--out", out)
    assert (answer.code, answer.out) == (2, "")
    assert told in answer.err
    assert "Traceback" not in answer.err
    assert not out.exists()


def test_a_table_is_trained_recorded_and_shown(whole: tuple[Path, Answer]) -> None:
    folder, answer = whole
    assert answer.code == 0
    assert answer.err.count(": done\n") == 4
    assert "digits-table1: method=fedavg,partition=iid-clients-4, seed 0: done" in answer.err
    for text in ("printed", "measured", "difference", "Avg", "Prox", "90", "Prox is above Avg.", str(folder)):
        assert text in answer.out
    assert {str(path.relative_to(folder)) for path in folder.glob("*.md")} >= {"README.md", f"{TABLE}.md"}
    (file,) = folder.glob("*/*.jsonl")
    assert file.parent.name == TABLE
    records = read_records(folder)
    assert len(records) == lines(folder) == 4
    assert {record.sitting.command for record in records} == {f"kedge reproduce {TABLE} --seeds 1"}
    for record in records:
        assert (record.rounds, record.precision, record.scale) == (20, "fp64", "full")
        assert f"{record.history['all.global.accuracy'][-1][1] * 100:.2f}" in answer.out


def test_a_second_call_trains_nothing_and_shows_the_same(out: Path, whole: tuple[Path, Answer]) -> None:
    shutil.copytree(whole[0], out)
    before = contents(out)
    again = kedge("reproduce", TABLE, "--seeds", "1", "--out", out)
    assert (again.code, again.err) == (0, "4 of 4 runs are recorded already.\n")
    assert again.out.replace(str(out), str(whole[0])) == whole[1].out
    assert contents(out) == before


def test_render_trains_nothing_and_writes_the_pages_again(out: Path, whole: tuple[Path, Answer]) -> None:
    shutil.copytree(whole[0], out)
    before = contents(out)
    for page in out.glob("*.md"):
        page.unlink()
    answer = kedge("reproduce", TABLE, "--render", "--out", out)
    assert (answer.code, answer.err) == (0, "")
    assert answer.out.replace(str(out), str(whole[0])) == whole[1].out
    assert contents(out) == before


def test_render_without_records_shows_the_print_and_writes_nothing(out: Path) -> None:
    answer = kedge("reproduce", TABLE, "--render", "--out", out)
    assert (answer.code, answer.err) == (0, "")
    assert "90" in answer.out
    assert "not measured" in answer.out
    assert not out.exists()


def test_json_has_every_number_of_every_seed_every_comparison_and_every_sitting(
    out: Path, whole: tuple[Path, Answer]
) -> None:
    answer = kedge("reproduce", TABLE, "--render", "--json", "--out", whole[0])
    found = answer.json()
    assert (answer.code, answer.err, found["name"], found["runs"]) == (0, "", TABLE, 4)
    records = {record.identity: record.history for record in read_records(whole[0])}
    measured = sorted(place["by_seed"]["0"] for place in found["table"])
    assert measured == pytest.approx(
        sorted(100 * history["all.global.accuracy"][-1][1] for history in records.values())
    )
    for place, printed in zip(found["table"], (90, 80, 91, 81), strict=True):
        assert (place["printed"], place["difference"]) == (printed, pytest.approx(place["mean"] - printed))
    (claim,) = found["claims"]
    assert claim["says"] == "Prox is above Avg."
    assert [list(one["by_seed"]) for one in claim["comparisons"]] == [["0"], ["0"]]
    (sitting,) = found["sittings"]
    assert (sitting["command"], sitting["runs"]) == (f"kedge reproduce {TABLE} --seeds 1", 4)
    every = kedge("reproduce", "all", "--render", "--json", "--out", whole[0]).json()
    assert [table["name"] for table in every["tables"]] == [TABLE, "digits-table2"]
    assert every["tables"][0] == found


@pytest.mark.slow
def test_more_seeds_train_only_the_missing_runs(out: Path, whole: tuple[Path, Answer]) -> None:
    shutil.copytree(whole[0], out)
    (first,) = out.glob("*/*.jsonl")
    before = first.read_bytes()
    answer = kedge("reproduce", TABLE, *ONE, "--out", out)  # three seeds
    assert answer.code == 0
    assert "1 of 3 runs are recorded already." in answer.err
    assert answer.err.count(": done\n") == 2
    assert lines(out) == 6
    assert first.read_bytes().startswith(before)
    place = json.loads(kedge("reproduce", TABLE, "--render", "--json", "--out", out).out)["table"][0]
    assert sorted(place["by_seed"]) == ["0", "1", "2"]


def test_another_precision_or_engine_does_not_train_a_run_again(
    out: Path, whole: tuple[Path, Answer]
) -> None:
    shutil.copytree(whole[0], out)
    words = ("--precision", "fp32", "--engine", "sequential", "--quiet")
    assert kedge("reproduce", TABLE, "--seeds", "1", *words, "--out", out).code == 0
    assert lines(out) == 4


def test_the_chosen_precision_and_engine_are_used(out: Path) -> None:
    words = ("--precision", "fp32", "--engine", "sequential", "--device", "cpu", "--pack", "1")
    answer = kedge("reproduce", TABLE, *ONE, "--seeds", "1", *words, "--out", out)
    assert answer.code == 0
    (record,) = read_records(out)
    assert record.precision == "fp32"
    assert record.sitting.command == (
        "kedge reproduce digits-table1 --cells row=Avg --cells column=IID --seeds 1 --device cpu "
        "--engine sequential --precision fp32 --pack 1"
    )


@pytest.mark.slow
def test_small_has_a_folder_and_a_number_of_seeds_of_its_own(out: Path) -> None:
    assert kedge("reproduce", TABLE, *ONE, "--scale", "small", "--quiet") == (0, "", "")
    (record,) = read_records(out.parent / "reproduced-small")
    assert (record.seed, record.rounds, record.scale) == (0, 2, "small")
    assert kedge("reproduce", TABLE, *ONE, "--quiet") == (0, "", "")
    assert [record.seed for record in read_records(out.parent / "reproduced")] == [0, 1, 2]
    # Beside whole runs in one folder, each scale shows its own.
    shutil.copytree(out.parent / "reproduced-small/digits-table1", out / TABLE)
    shutil.copytree(out.parent / "reproduced/digits-table1", out / TABLE, dirs_exist_ok=True)
    found = kedge("reproduce", TABLE, "--scale", "small", "--render", "--json", "--out", out).json()
    assert (found["scale"], found["runs"], found["seeds"]) == ("small", 1, [0])


def test_quiet_prints_nothing_even_if_runs_are_recorded(out: Path) -> None:
    for _ in range(2):
        assert kedge("reproduce", TABLE, *ONE, "--seeds", "1", "--quiet", "--out", out) == (0, "", "")
    assert lines(out) == 1


@pytest.mark.slow
def test_processes_side_by_side_give_the_table_of_one(out: Path, whole: tuple[Path, Answer]) -> None:
    words = ("--workers", "2", "--json", "--out")
    answer = kedge("reproduce", TABLE, "--seeds", "1", *words, out)
    assert (answer.code, answer.err) == (0, "")
    expected = kedge("reproduce", TABLE, "--render", "--json", "--out", whole[0]).json()
    for key in ("table", "claims", "runs", "seeds"):
        assert answer.json()[key] == expected[key]
    assert not list((out.parent / "tmp").glob("kedge-*"))
