"""A run saves its partition: other runs can use it, and a resumed run detects changed data."""

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.cli.command import SMALL, kedge
from tests.data import official

import kedge as library
from kedge.config.document import override
from kedge.config.document import read as read_experiment
from kedge.config.experiment import resolve
from kedge.config.federations import federation_of
from kedge.core.errors import DataError
from kedge.data.partitions.saved import PARTITION_FILE, read_partition
from kedge.running.execute import resume

QUICK: dict[str, Any] = {
    "rounds": 2,
    "model": "mlp",
    "training.epochs": 1,
    "engine.name": "sequential",
    "checkpoint.every": 1,
}


def test_a_run_s_folder_holds_who_trains_and_is_tested_on_what(tmp_path: Path) -> None:
    library.run("quickstart", out=tmp_path / "run", **QUICK)
    found = read_partition(tmp_path / "run" / PARTITION_FILE)
    dealt = federation_of(resolve(override(read_experiment("quickstart"), QUICK)))
    assert (found.dataset, found.local, found.local_test, found.samples) == ("digits", "split", 0.2, 1438)
    assert len(found.train) == 20
    assert all(map(np.array_equal, found.train, dealt.clients))
    assert all(map(np.array_equal, found.test, dealt.local_tests))


def test_another_method_and_seed_run_on_the_saved_partition(tmp_path: Path) -> None:
    """Another seed changes weights and cohorts, but not the clients' samples."""
    library.run("quickstart", out=tmp_path / "first", **QUICK)
    words = ("--set", f"partition=saved(path={tmp_path / 'first'})", "--set", "method=feddyn", "--seed", "5")
    answer = kedge("run", "quickstart", *SMALL, *words, "--out", tmp_path / "second")
    assert answer.code == 0, answer
    assert (tmp_path / "first" / PARTITION_FILE).read_bytes() == (
        tmp_path / "second" / PARTITION_FILE
    ).read_bytes()
    own = library.run("quickstart", out=tmp_path / "other", **QUICK, seed=5)
    assert own.folder
    assert (own.folder / PARTITION_FILE).read_bytes() != (tmp_path / "first" / PARTITION_FILE).read_bytes()


def test_the_saved_partition_of_a_run_gives_its_numbers(tmp_path: Path) -> None:
    first = library.run("quickstart", out=tmp_path / "run", **QUICK)
    for path in (tmp_path / "run", tmp_path / "run" / PARTITION_FILE):
        again = library.run("quickstart", **QUICK, partition=f"saved(path={path})")
        assert again.accuracy == first.accuracy
        assert again.metric("personal.local.loss") == first.metric("personal.local.loss")


@pytest.mark.parametrize(
    ("setting", "code", "message"),
    [
        (
            "data.name=synthetic",
            2,
            "it is a partition of the dataset 'digits', and this run uses 'synthetic'",
        ),
        ("evaluation.local_test=0.5", 2, "Set evaluation.local = 'split' and evaluation.local_test = 0.2"),
        ("partition.path=/nowhere", 2, "there is no file /nowhere. Name the folder of a run"),
        ("partition.clients=3", 2, "unknown key partition.clients. Allowed for name = 'saved': path."),
    ],
)
def test_a_saved_partition_that_does_not_fit_ends_the_request(
    setting: str, code: int, message: str, tmp_path: Path
) -> None:
    library.run("quickstart", out=tmp_path / "run", **QUICK)
    words = ("--set", f"partition=saved(path={tmp_path / 'run'})", "--set", setting)
    answer = kedge("run", "quickstart", *SMALL, *words, "--out", tmp_path / "new")
    assert answer.code == code, answer
    assert message in answer.err
    assert not (tmp_path / "new").exists()


def mine(folder: Path, labels: Any) -> None:
    x = np.random.default_rng(0).standard_normal((len(labels) + 10, 5)).astype(np.float32)
    test = np.arange(10) % 3
    np.savez(folder / "mine.npz", x_train=x[10:], y_train=labels, x_test=x[:10], y_test=test)


def start_run(tmp_path: Path) -> Path:
    """A run on the user's own data without its last round."""
    mine(tmp_path, np.arange(90) % 3)
    data = {"data": {"name": "mine", "path": str(tmp_path)}}
    ways = {**QUICK, **data, "partition": "iid(clients=5)", "participation.per_round": 2}
    library.run("quickstart", out=tmp_path / "run", **ways)
    (tmp_path / "run/model.safetensors").unlink()
    return tmp_path / "run"


def test_a_run_whose_data_have_changed_does_not_go_on(tmp_path: Path) -> None:
    run = start_run(tmp_path)
    before = {p: p.read_bytes() for p in run.rglob("*") if p.is_file()}
    for labels, message in (
        (np.arange(90) % 3 == 0, "the 90 labels have changed"),
        (np.arange(80) % 3, "there are 80 samples, there were 90"),
    ):
        mine(tmp_path, labels.astype(np.int64))
        answer = kedge("run", "--resume", run)
        assert answer.code == 3, answer
        assert f"{run} cannot resume, because the data have changed since it started: {message}" in answer.err
    assert {p: p.read_bytes() for p in run.rglob("*") if p.is_file()} == before
    mine(tmp_path, np.arange(90) % 3)
    assert kedge("run", "--resume", run).code == 0


@pytest.mark.parametrize("part", ["x_train", "x_test", "y_test"])
def test_a_run_whose_samples_have_changed_does_not_go_on(tmp_path: Path, part: str) -> None:
    """The partition depends only on labels, and they are the same."""
    run = start_run(tmp_path)
    with np.load(tmp_path / "mine.npz") as data:
        arrays = dict(data)
    first = arrays[part].copy()
    arrays[part][0] = arrays[part][0] + 1 if part == "y_test" else 0
    np.savez(tmp_path / "mine.npz", **arrays)
    answer = kedge("run", "--resume", run)
    assert answer.code == 3, answer
    assert (
        f"{run} cannot resume, because the data have changed since it started: the samples or the"
        in answer.err
    )
    arrays[part] = first
    np.savez(tmp_path / "mine.npz", **arrays)
    assert kedge("run", "--resume", run).code == 0


def test_a_partition_of_version_0_1_knows_no_samples_and_compares_none(tmp_path: Path) -> None:
    run = start_run(tmp_path)
    with np.load(run / PARTITION_FILE) as data:
        arrays = dict(data)
    assert len(str(arrays.pop("inputs"))) == 64
    np.savez(run / PARTITION_FILE, **arrays)
    with np.load(tmp_path / "mine.npz") as data:
        np.savez(tmp_path / "mine.npz", **{**data, "x_train": data["x_train"] + 1})
    assert kedge("run", "--resume", run).code == 0


def test_a_run_of_version_0_1_goes_on_with_data_that_would_be_refused_now(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("KEDGE_DATA", raising=False)
    images = official.random_bytes(40, 28, 28), official.random_bytes(40, seed=1) % 10
    official.unpacked(tmp_path / "idx", official.mnist(images, images))
    data = {"name": "mnist", "path": str(tmp_path / "idx"), "verify": False}
    ways = {**QUICK, "data": data, "partition": "iid(clients=5)", "participation.per_round": 2}
    library.run("quickstart", out=tmp_path / "run", **ways)
    (tmp_path / "run/model.safetensors").unlink()
    config = tmp_path / "run/config.toml"
    assert "verify = false\n" in config.read_text()
    config.write_text(config.read_text().replace("verify = false\n", ""))
    assert kedge("run", "--resume", tmp_path / "run").code == 0
    with pytest.raises(DataError, match="the checksum of train-images"):
        library.run("quickstart", **{**ways, "data": {**data, "verify": True}})


def test_a_run_of_before_there_were_saved_partitions_goes_on(tmp_path: Path) -> None:
    run = start_run(tmp_path)
    whole = (run / PARTITION_FILE).read_bytes()
    (run / PARTITION_FILE).unlink()
    resume(run)
    assert (run / PARTITION_FILE).read_bytes() == whole


def test_a_damaged_partition_is_told_with_the_way_out(tmp_path: Path) -> None:
    run = start_run(tmp_path)
    (run / PARTITION_FILE).write_bytes(b"PK")
    with pytest.raises(DataError, match=r"partition\.npz: damaged.* delete the file: the run resumes"):
        resume(run)


def test_a_run_on_a_saved_partition_resumes_when_the_first_run_is_gone(tmp_path: Path) -> None:
    library.run("quickstart", out=tmp_path / "first", **QUICK)
    ways = {**QUICK, "partition": f"saved(path={tmp_path / 'first'})"}
    library.run("quickstart", out=tmp_path / "second", **ways)
    last = json.loads((tmp_path / "second/history.jsonl").read_text().splitlines()[-1])
    (tmp_path / "second/model.safetensors").unlink()
    shutil.rmtree(tmp_path / "second/checkpoint")
    shutil.rmtree(tmp_path / "first")
    again = resume(tmp_path / "second").history[-1]
    assert {k: v for k, v in again.items() if k != "time"} == {k: v for k, v in last.items() if k != "time"}
    assert str(tmp_path / "first") in (tmp_path / "second/config.toml").read_text()
