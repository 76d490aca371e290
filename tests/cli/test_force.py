"""--force replaces only files that kedge wrote. A folder is used by one process at a time."""

import json
import multiprocessing
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from filelock import lock_descriptor
from tests.cli.command import kedge
from tests.cli.grids import written
from tests.running.short_runs import experiment

from kedge.core.errors import RequestError
from kedge.running.execute import execute
from kedge.running.folders.folder import check_free, create, locked
from kedge.running.folders.marker import Marker
from kedge.running.folders.replacing import check_replaceable

TINY = (
    "--set", "rounds=1", "--set", "training.epochs=1", "--set", "model.name=mlp",
    "--set", "data.name=synthetic",
    "--set", "data.samples=120", "--set", "data.features=[6]", "--set", "partition.name=iid",
    "--set", "partition.clients=4", "--set", "participation.per_round=2", "--set", "engine.name=sequential",
    "--quiet",
)  # fmt: skip
GOLDEN = Path(__file__).parent.parent / "golden/v0.1"


def run(*words: str | Path) -> Any:
    return kedge("run", "quickstart", *TINY, *words)


def everything(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}


def check_refused(answer: Any, *parts: str) -> None:
    assert answer.code == 2, answer
    assert "Traceback" not in answer.err
    for part in parts:
        assert part in answer.err


@pytest.mark.parametrize("out", [".", "..", "", "here/..", "/"])
def test_the_current_folder_and_those_above_it_are_never_replaced(
    out: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "t"
    (folder / "here").mkdir(parents=True)
    (folder / "keep").touch()
    (tmp_path / "beside").touch()
    monkeypatch.chdir(folder)
    check_refused(run("--out", out, "--force"), "--force does not replace")
    assert (folder / "keep").is_file()
    assert (tmp_path / "beside").is_file()


def test_a_run_s_own_folder_is_not_replaced_from_inside(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert run("--out", tmp_path / "run").code == 0
    monkeypatch.chdir(tmp_path / "run")
    check_refused(run("--out", ".", "--force"), "it is the current folder or a parent of it")
    check_refused(run("--out", tmp_path / "run", "--force"), "it is the current folder or a parent of it")


def test_a_name_is_no_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "t").mkdir()
    (tmp_path / "t/keep").touch()
    monkeypatch.chdir(tmp_path / "t")
    for name in ("..", ".", "a/b", "/tmp", "a\\b"):
        for command in ("run", "sweep"):
            words = ("--set", f"name='{name}'", "--force")
            grid = () if command == "run" else ("--set", 'grid.method=["fedavg"]')
            check_refused(kedge(command, "quickstart", *TINY, *words, *grid), "name = ", "it names a folder")
    assert (tmp_path / "t/keep").is_file()


def test_a_home_folder_is_never_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home = tmp_path / "homes/me"
    home.mkdir(parents=True)
    monkeypatch.setenv("HOME", str(home))
    for folder in (home, home.parent):
        with pytest.raises(RequestError, match="it is your home folder or a parent of it"):
            check_replaceable(folder)


def test_a_folder_with_a_stranger_s_file_is_left_as_it_is(tmp_path: Path) -> None:
    out = tmp_path / "out"
    out.mkdir()
    (out / "thesis.tex").write_text("mine")
    answer = run("--out", out, "--force")
    check_refused(answer, f"--force does not replace {out}: it contains thesis.tex, which kedge did not",
                  "Use another folder with --out DIR, or move these files away yourself")  # fmt: skip
    assert "was saved before" not in answer.err
    assert everything(out) == {"thesis.tex": b"mine"}


def test_a_file_and_a_link_are_not_replaced(tmp_path: Path) -> None:
    execute(experiment(rounds=1), tmp_path / "run")
    (tmp_path / "link").symlink_to(tmp_path / "run")
    (tmp_path / "gone").symlink_to(tmp_path / "nowhere")
    (tmp_path / "file").write_text("mine")
    check_refused(run("--out", tmp_path / "link", "--force"), "it is a link to")
    check_refused(run("--out", tmp_path / "gone", "--force"), "it is a link to")
    check_refused(run("--out", tmp_path / "gone"), "exists already")
    check_refused(run("--out", tmp_path / "file", "--force"), "it is a file")
    assert (tmp_path / "file").read_text() == "mine"


@pytest.mark.parametrize(
    "stranger",
    [
        "notes.txt", "my.safetensors", "checkpoint/notes", "checkpoint/000001/notes", "checkpoint/best/x",
        "seed0/config.toml", ".hidden", "accuracy.png",
    ],
)  # fmt: skip
def test_a_run_with_something_else_in_it_is_not_replaced(stranger: str, tmp_path: Path) -> None:
    shutil.copytree(GOLDEN / "finished", tmp_path / "run")
    check_replaceable(tmp_path / "run")
    path = tmp_path / "run" / stranger
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("mine")
    with pytest.raises(RequestError, match="which kedge did not write") as raised:
        check_replaceable(tmp_path / "run")
    assert stranger.split("/")[-1] in str(raised.value) or stranger.split("/")[-2] in str(raised.value)


def test_a_link_in_a_run_is_not_kedge_s(tmp_path: Path) -> None:
    shutil.copytree(GOLDEN / "finished", tmp_path / "run")
    (tmp_path / "run/model.safetensors").unlink()
    (tmp_path / "run/model.safetensors").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(RequestError, match=r"it contains model\.safetensors"):
        check_replaceable(tmp_path / "run")


@pytest.mark.parametrize("name", ["finished", "interrupted", "several", "sweep", "train"])
def test_folders_of_version_0_1_are_kedge_s(name: str, tmp_path: Path) -> None:
    shutil.copytree(GOLDEN / name, tmp_path / name)
    check_replaceable(tmp_path / name)
    for part in ("", "fedavg", "method=fedavg/seed0"):
        if (tmp_path / name / part).is_dir():
            (tmp_path / name / part / "mine").touch()
            with pytest.raises(RequestError, match=r"it contains (.*/)?mine, which"):
                check_replaceable(tmp_path / name)
            (tmp_path / name / part / "mine").unlink()


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("config.toml", "name = 'mine'\nrounds = 3\n[data]\nname = 'x'\n"),
        ("runs.json", "[1, 2]"),
        ("runs.json", '[{"folder": "..", "config": ""}]'),
        ("runs.json", '[{"folder": "mine", "config": "rounds = 3"}]'),
        ("sweep.json", "{}"),
        ("kedge.json", '{"mine": 1}'),
        ("history.jsonl", "{}"),
    ],
)
def test_other_programs_files_of_the_same_names_are_not_kedge_s(
    name: str, content: str, tmp_path: Path
) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / name).write_text(content)
    with pytest.raises(RequestError, match=f"it contains {name}, which kedge did not write"):
        check_replaceable(tmp_path / "out")


def test_views_of_one_s_own_and_what_a_crash_left_are_kedge_s(tmp_path: Path) -> None:
    folder = tmp_path / "several"
    shutil.copytree(GOLDEN / "several", folder)
    run_folder = folder / "fedavg"
    lines = (run_folder / "history.jsonl").read_text().replace("average.global", "mine.global")
    (run_folder / "history.jsonl").write_text(lines)
    shutil.copy(run_folder / "model.safetensors", run_folder / "mine.safetensors")
    (run_folder / ".environment.json.tmp").touch()
    (run_folder / "checkpoint/.000009.tmp").mkdir()
    (run_folder / "checkpoint/.000009.tmp/.state.json.tmp").touch()
    (folder / ".scaffold.a1b2c3d4").mkdir()
    (folder / ".scaffold.a1b2c3d4/.config.toml.tmp").touch()
    (folder / "accuracy.png").touch()
    check_replaceable(folder)
    (folder / ".scaffold.a1b2c3d4/mine").touch()
    with pytest.raises(RequestError, match=r"it contains .scaffold.a1b2c3d4/mine"):
        check_replaceable(folder)


@pytest.mark.slow
def test_a_run_several_runs_and_a_sweep_are_replaced_again_and_again(tmp_path: Path) -> None:
    out = tmp_path / "out"
    out.mkdir()  # an empty one is free
    several = ("--methods", "fedavg, fedbug+feddyn", "--seeds", "2")
    sweep = ("sweep", written(tmp_path, 'method = ["fedavg"]'), "--out", out, "--force", "--quiet")
    for _ in range(2):  # as make quickstart does
        assert run("--out", out, "--force", *several).code == 0
        assert (out / "accuracy.png").is_file()
    assert json.loads((out / "kedge.json").read_text())["kind"] == "runs"
    (out / "fedavg/seed1/mine").touch()
    check_refused(run("--out", out, "--force"), "it contains fedavg/seed1/mine, which kedge did not write")
    (out / "fedavg/seed1/mine").unlink()
    for answer in (kedge(*sweep), kedge(*sweep)):
        assert answer.code == 0, answer
    assert json.loads((out / "kedge.json").read_text())["kind"] == "sweep"
    for _ in range(2):
        assert run("--out", out, "--force").code == 0
    assert sorted(p.name for p in tmp_path.iterdir()) == ["grid.toml", "out"]
    assert json.loads((out / "kedge.json").read_text())["kind"] == "run"


def lock_folder(folder: Path, ready: Any, leave: Any) -> None:
    with locked(folder):
        ready.set()
        leave.wait()


@contextmanager
def locked_elsewhere(folder: Path) -> Iterator[None]:
    """In this context, another process has locked this folder."""
    context = multiprocessing.get_context("fork")
    ready, leave = context.Event(), context.Event()
    other = context.Process(target=lock_folder, args=(folder, ready, leave))
    other.start()
    try:
        assert ready.wait(60)
        yield
    finally:
        leave.set()
        other.join()


@pytest.mark.parametrize(
    ("name", "inside"),
    [("interrupted", ""), ("several", ""), ("several", "scaffold"), ("sweep", "method=fedavg/seed1")],
)
def test_a_folder_in_which_a_process_runs_is_not_replaced(name: str, inside: str, tmp_path: Path) -> None:
    out = tmp_path / name
    shutil.copytree(GOLDEN / name, out)
    before = everything(out)
    with locked_elsewhere(out / inside):
        check_refused(
            run("--out", out, "--force"), "another process is running in", "wait for it, or stop it"
        )
        if not inside:
            command = "sweep" if name == "sweep" else "run"
            check_refused(kedge(command, "--resume", out), "another process is running in")
    assert everything(out) == before
    check_free(out, True)


def test_a_folder_appears_with_its_lock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another process looks at the folder just after it was renamed."""
    refused = []
    rename = os.rename

    def rename_and_look(source: Any, target: Any) -> None:
        rename(source, target)
        if Path(target) == tmp_path / "run":
            with pytest.raises(RequestError, match="another process is running"), locked(tmp_path / "run"):
                pass
            refused.append(target)

    monkeypatch.setattr(os, "rename", rename_and_look)
    execute(experiment(rounds=1), tmp_path / "run")
    assert len(refused) == 1
    with locked(tmp_path / "run"):
        pass


def test_who_waited_for_a_folder_that_was_replaced_does_not_get_the_old_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    create(tmp_path / "run", {"config.toml": "first"}, Marker("run"))

    def late(file: int, blocking: bool) -> bool:
        monkeypatch.undo()
        os.rename(tmp_path / "run", tmp_path / "old")
        create(tmp_path / "run", {"config.toml": "second"}, Marker("run"))
        return lock_descriptor(file, blocking=blocking)

    monkeypatch.setattr("kedge.running.folders.folder.lock_descriptor", late)
    with pytest.raises(RequestError, match="another process has just replaced"), locked(tmp_path / "run"):
        pass


def test_of_two_that_make_the_same_folder_one_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mkdir = os.mkdir
    made: list[Any] = []

    def other_first(path: Any, *rest: Any) -> None:
        mkdir(path, *rest)
        if not made:
            made.append(path)
            create(tmp_path / "run", {"config.toml": "first"}, Marker("run"))

    monkeypatch.setattr(os, "mkdir", other_first)
    with pytest.raises(RequestError, match="exists already"):
        create(tmp_path / "run", {"config.toml": "second"}, Marker("run"))
    assert (tmp_path / "run/config.toml").read_text() == "first"
    assert [p.name for p in tmp_path.iterdir()] == ["run"]


def test_a_folder_that_cannot_be_made_is_told_without_a_word_about_what_was_saved(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    answer = run("--out", tmp_path / "file/run")
    assert answer.code in (1, 2)
    assert "was saved before" not in answer.err
    assert "Traceback" not in answer.err


def test_folders_of_a_newer_version_are_refused(tmp_path: Path) -> None:
    assert run("--out", tmp_path / "run").code == 0
    file = tmp_path / "run/kedge.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), "format": 3, "kedge": "9.1"}))
    message = "was written by kedge 9.1, newer than this one"
    check_refused(kedge("run", "--resume", tmp_path / "run"), message)
    check_refused(kedge("compare", tmp_path / "run"), message)
    check_refused(run("--out", tmp_path / "run", "--force"), message)
