"""Run folders of earlier versions are read, and resume to the result of their own version."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
from tests.cli.command import kedge
from tests.golden.write_folders import INTERRUPTED, train

VERSIONS = sorted(Path(__file__).parents[2].glob("golden/v*"))
EACH = pytest.mark.parametrize("version", VERSIONS, ids=[p.name for p in VERSIONS])


def copied(version: Path, name: str, folder: Path) -> Path:
    shutil.copytree(version / name, folder)
    return folder


def lines(path: Path) -> list[Any]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def near(found: Any, wanted: Any) -> None:
    """Equality up to rounding; keys that a later version adds are ignored."""
    if isinstance(wanted, dict):
        for key in wanted.keys() - {"time"}:
            near(found[key], wanted[key])
    elif isinstance(wanted, list):
        assert len(found) == len(wanted)
        for one, other in zip(found, wanted, strict=True):
            near(one, other)
    else:
        assert found == (pytest.approx(wanted, rel=1e-9) if isinstance(wanted, float) else wanted)


def check_ended(folder: Path, ended: Path) -> None:
    """The folder's models and histories are those of the run's own version."""
    found = safetensors.torch.load_file(folder / "model.safetensors")
    for name, value in safetensors.torch.load_file(ended / "model.safetensors").items():
        torch.testing.assert_close(found[name], value, rtol=1e-10, atol=1e-12)
    for file in ("history.jsonl", "clients.jsonl"):
        near(lines(folder / file), lines(ended / file))


def test_there_are_folders_of_earlier_versions() -> None:
    assert "v0.1" in [version.name for version in VERSIONS]


@EACH
@pytest.mark.parametrize("name", INTERRUPTED)
def test_an_interrupted_run_ends_as_in_its_own_version(version: Path, name: str, tmp_path: Path) -> None:
    folder = copied(version, name, tmp_path / "run")
    answer = kedge("run", "--resume", folder, "--quiet")
    assert answer.code == 0, answer.err
    check_ended(folder, version / "ended" / name)


@EACH
def test_a_finished_run_is_read_and_left_alone(version: Path, tmp_path: Path) -> None:
    folder = copied(version, "finished", tmp_path / "run")
    before = {p: p.read_bytes() for p in folder.rglob("*") if p.is_file()}
    answer = kedge("run", "--resume", folder)
    assert answer.code == 0
    assert "finished already" in answer.err
    assert "fedbug" in answer.out
    assert {p: p.read_bytes() for p in folder.rglob("*") if p.is_file()} == before
    rows = kedge("compare", folder, "--json").json()["runs"]
    assert rows[0]["rounds"] == 6


@EACH
def test_several_runs_of_one_command_go_on(version: Path, tmp_path: Path) -> None:
    folder = copied(version, "several", tmp_path / "several")
    answer = kedge("run", "--resume", folder, "--json")
    assert answer.code == 0, answer.err
    assert [row["method"] for row in answer.json()["runs"]] == ["fedavg", "scaffold"]
    check_ended(folder / "scaffold", version / "ended/several/scaffold")


@pytest.mark.slow
@EACH
def test_a_sweep_goes_on_with_the_runs_that_are_left(version: Path, tmp_path: Path) -> None:
    folder = copied(version, "sweep", tmp_path / "sweep")
    answer = kedge("sweep", "--resume", folder, "--json")
    assert answer.code == 0, answer.err
    assert "seed0 is finished already" in answer.err
    assert [row["rounds"] for row in answer.json()["cells"]] == [6, 6]
    name = "sweep/method=fedavg/seed1"
    check_ended(folder / "method=fedavg/seed1", version / "ended" / name)


@EACH
def test_a_run_from_python_goes_on(version: Path, tmp_path: Path) -> None:
    folder = copied(version, "train", tmp_path / "train")
    train(folder, rounds=6, resume=True)
    check_ended(folder, version / "ended/train")
