"""A short, missing or changed history is detected before the first round, and rebuilt if possible."""

import hashlib
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.cli.command import kedge
from tests.quick import every
from tests.running.short_runs import experiment

from kedge.running.execute import execute, run_is_finished
from kedge.running.folders.folder import Lines

FILES = ("history.jsonl", "clients.jsonl")


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run of four rounds; its checkpoints are of rounds 3 and 4."""
    folder = tmp_path_factory.mktemp("whole") / "run"
    own = {"checkpoint__every": 1, "evaluation__local_test": 0.2, "engine__name": "sequential"}
    execute(experiment(**own), folder)
    return folder


def lines(path: Path) -> list[dict[str, Any]]:
    return [
        {k: v for k, v in json.loads(line).items() if k != "time"} for line in path.read_bytes().splitlines()
    ]


def check_ended_as(folder: Path, whole: Path) -> None:
    for file in FILES:
        assert lines(folder / file) == lines(whole / file)
    for file in ("model.safetensors", "checkpoint/000004/tensors.safetensors"):
        assert (folder / file).read_bytes() == (whole / file).read_bytes()
    assert run_is_finished(folder)


def everything(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}


def as_version_0_1(folder: Path) -> None:
    """Remove everything that version 0.1 did not write: kedge.json, checksums of histories, identities."""
    (folder / "kedge.json").unlink()
    for state in folder.glob("checkpoint/*/state.json"):
        facts = json.loads(state.read_text())
        del facts["sha256"], facts["identity"]
        state.write_text(json.dumps(facts))
        manifest = state.with_name("manifest.json")
        listed = json.loads(manifest.read_text())
        listed["sha256"]["state.json"] = hashlib.sha256(state.read_bytes()).hexdigest()
        manifest.write_text(json.dumps(listed))


def shorten(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-20])


def lose_last_line(path: Path) -> None:
    path.write_bytes(b"".join(path.read_bytes().splitlines(keepends=True)[:-1]))


def scratch(path: Path) -> None:
    content = path.read_bytes()
    path.write_bytes(content[:-20] + b"\0" * 19 + b"\n")


def change_a_number(path: Path) -> None:
    head, last = path.read_bytes().rstrip(b"\n").rsplit(b"\n", 1)
    path.write_bytes(head + b"\n" + last.translate(bytes.maketrans(b"123456789", b"987654321")) + b"\n")


DAMAGES = [shorten, lose_last_line, scratch, change_a_number]


@pytest.mark.parametrize("file", FILES)
@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("ended", [True, False], ids=["finished", "begun"])
def test_the_older_checkpoint_rebuilds_the_newest_rounds(
    file: str, damage: Callable[[Path], None], ended: bool, whole: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "run"
    shutil.copytree(whole, folder)
    damage(folder / file)
    if not ended:
        (folder / "model.safetensors").unlink()
    assert not run_is_finished(folder)
    answer = kedge("run", "--resume", folder)
    assert answer.code == 0, answer.err
    assert f"checkpoint {folder}/checkpoint/000004 does not fit: " in answer.err
    assert file in answer.err
    assert "It is skipped." in answer.err
    assert "repeats the rounds after round 3 exactly" in answer.err
    assert "finished already" not in answer.err
    check_ended_as(folder, whole)


@pytest.mark.parametrize("file", FILES)
@pytest.mark.parametrize("damage", [shorten, lose_last_line, scratch])
def test_version_0_1_saved_lengths_only_so_lines_are_read(
    file: str, damage: Callable[[Path], None], whole: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "run"
    shutil.copytree(whole, folder)
    as_version_0_1(folder)
    assert run_is_finished(folder)
    damage(folder / file)
    answer = kedge("run", "--resume", folder)
    assert answer.code == 0, answer.err
    assert "000004 does not fit" in answer.err
    check_ended_as(folder, whole)


def lose(path: Path) -> None:
    path.unlink()


def empty(path: Path) -> None:
    path.write_bytes(b"")


def change_the_first_line(path: Path) -> None:
    path.write_bytes(path.read_bytes().replace(b'"round": 1', b'"round": 7', 1))


def cut_after_one(path: Path) -> None:
    path.write_bytes(path.read_bytes().splitlines(keepends=True)[0])


@pytest.mark.parametrize("file", FILES)
@pytest.mark.parametrize("damage", every(2, [lose, empty, change_the_first_line, cut_after_one]))
@pytest.mark.parametrize("old", [False, True], ids=["v2", "v0.1"])
def test_what_no_checkpoint_can_rebuild_is_refused_and_left_as_it_is(
    file: str, damage: Callable[[Path], None], old: bool, whole: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "run"
    shutil.copytree(whole, folder)
    if old:
        as_version_0_1(folder)
    (folder / "model.safetensors").unlink()
    damage(folder / file)
    before = everything(folder)
    answer = kedge("run", "--resume", folder)
    assert answer.code == 1, answer
    assert answer.err.count("It is skipped.") == 2
    assert f"no checkpoint in {folder}/checkpoint fits this run" in answer.err
    assert "Restore the missing or damaged files from a copy" in answer.err
    assert "Traceback" not in answer.err
    assert everything(folder) == before
    shutil.rmtree(folder / "checkpoint")  # as the message says
    answer = kedge("run", "--resume", folder)
    assert answer.code == 0
    if (file, damage) not in [("history.jsonl", lose), ("history.jsonl", empty)]:
        assert "has no checkpoint: the run starts again at round 1" in answer.err
    check_ended_as(folder, whole)


@pytest.mark.parametrize("damage", [lose, empty, shorten, scratch])
def test_a_finished_run_without_checkpoints_is_not_run_again_silently(
    damage: Callable[[Path], None], whole: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "run"
    shutil.copytree(whole, folder)
    shutil.rmtree(folder / "checkpoint")
    assert "finished already" in kedge("run", "--resume", folder).err
    damage(folder / "history.jsonl")
    before = everything(folder)
    answer = kedge("run", "--resume", folder)
    assert answer.code == 1
    assert f"the run in {folder} has ended" in answer.err
    assert f"delete {folder}/model.safetensors to run again from the start" in answer.err
    assert everything(folder) == before


def test_what_was_written_after_the_checkpoint_does_not_matter(whole: Path, tmp_path: Path) -> None:
    """The rounds after the checkpoint run again."""
    folder = tmp_path / "run"
    shutil.copytree(whole, folder)
    shutil.rmtree(folder / "checkpoint/000004")
    (folder / "model.safetensors").unlink()
    for file in FILES:
        scratch(folder / file)
    answer = kedge("run", "--resume", folder)
    assert answer.code == 0, answer.err
    assert "does not fit" not in answer.err
    check_ended_as(folder, whole)


def test_of_several_runs_only_the_damaged_one_fails(tmp_path: Path) -> None:
    top = tmp_path / "top"
    words = ("--set", "rounds=2", "--set", "model.name=mlp", "--set", "training.epochs=1", "--quiet")
    assert kedge("run", "quickstart", *words, "--methods", "fedavg, feddyn", "--out", top).code == 0
    (top / "feddyn/history.jsonl").unlink()
    (top / "fedavg/model.safetensors").unlink()
    answer = kedge("run", "--resume", top)
    assert answer.code == 1
    assert f"error: {top}/feddyn: no checkpoint in" in answer.err
    assert run_is_finished(top / "fedavg")


def test_other_damaged_files_of_a_run_are_told(whole: Path, tmp_path: Path) -> None:
    again = "or delete it: kedge then chooses the engine again"
    for number, (file, content, code, words) in enumerate(
        (
            ("environment.json", "{", 3, again),
            ("environment.json", '{"engine": {}}', 3, again),
            ("environment.json", '{"engine": []}', 3, again),
            ("kedge.json", "{", 3, "If you have none, delete the file"),
            ("config.toml", "{", 2, "is no valid TOML"),
        )
    ):
        folder = tmp_path / f"run{number}"
        shutil.copytree(whole, folder)
        (folder / "model.safetensors").unlink()
        (folder / file).write_text(content)
        answer = kedge("run", "--resume", folder)
        assert (answer.code, words in answer.err) == (code, True), answer.err


def test_a_checksum_grows_with_its_file(tmp_path: Path) -> None:
    path = tmp_path / "lines.jsonl"
    first = Lines(path)
    first.append({"round": 1})
    length = first.length()
    first.append({"round": 2})
    first.close()
    assert first.checksum() == hashlib.sha256(path.read_bytes()).hexdigest()
    again = Lines(path, length)
    assert again.checksum() == hashlib.sha256(path.read_bytes()).hexdigest()
    again.append({"round": 3})
    again.close()
    assert again.checksum() == hashlib.sha256(b'{"round": 1}\n{"round": 3}\n').hexdigest()
    assert path.read_bytes() == b'{"round": 1}\n{"round": 3}\n'
