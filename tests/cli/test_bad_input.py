"""Wrong requests end with the right exit code and a message with the given value and the remedy."""

import errno
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from tests.cli.command import SMALL, kedge
from torch import nn

import kedge as library
import kedge.models as models
from kedge.running.folders import checkpoint, folder


@pytest.fixture(autouse=True)
def in_an_empty_folder(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> None:
    """Commands write to runs/NAME below the current folder, which may contain a run of the developer."""
    monkeypatch.chdir(tmp_path_factory.mktemp("here"))


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("training.epoch=3", r"unknown key training.epoch. Did you mean 'epochs'? Allowed: epochs, batch"),
        ("trainin.epochs=3", "unknown key trainin. Did you mean 'training'?"),
        ("method.alfa=1", "unknown key method.alfa."),
        ("partition.kind='iid'", "unknown key partition.kind. Allowed for name = 'dirichlet': clients"),
        ("method=fedavgg", "no method or schedule is called 'fedavgg'. Did you mean 'fedavg'?"),
        ("model.name=small-cn", "model.name = 'small-cn': no such name. Did you mean 'small-cnn'?"),
        ("partition.name=dirichlett", "Did you mean 'dirichlet'?"),
        ("optimizer.name=sdg", "Did you mean 'sgd'?"),
        (
            "engine.name=stackd",
            "need 'auto', 'sequential', 'stacked', 'captured' or 'ray'. Did you mean 'stacked'?",
        ),
        ("epochs=3", "unknown key epochs. Did you mean 'training.epochs'?"),
        ("training.epochs=five", "training.epochs = 'five': need a valid integer"),
        ("training.epochs=1.5", "training.epochs = 1.5"),
        ("training.drop_last=1", "training.drop_last = 1: need a valid boolean"),
        ("training=3", "training = 3: need a table [training]"),
        ("rounds=0", "rounds = 0: need a whole number of at least 1"),
        ("rounds=-3", "rounds = -3: need a whole number of at least 1"),
        ("training.epochs=0", "training.epochs = 0: need a whole number of at least 1"),
        ("training.batch=-1", "training.batch = -1: need a whole number of at least 1"),
        ("training.clip=0", "clip = 0.0: need clip > 0; leave it out for no clipping"),
        ("evaluation.every=0", "evaluation.every = 0: need"),
        ("checkpoint.every=-1", "checkpoint.every = -1: need"),
        ("engine.chunk=-1", "engine.chunk = -1: need a whole number of at least 0; 0 is automatic"),
        ("seed=-1", "seed = -1: need a whole number from 0 to 4294967295"),
        ("name=a/b", "it names a folder"),
        ("name=..", "name = '..': use letters, digits"),
        ("name=.", "name = '.': use letters, digits"),
        ("name=''", "it names a folder"),
        ("name=/tmp/x", "it names a folder"),
        ('name="a\\\\b"', "it names a folder"),
        ("name='C:x'", "it names a folder"),
        ("partition.clients=0", "clients=0"),
        ("partition.clients=2000", "2000"),
        ("partition.alpha=0", "alpha=0"),
        ("partition.alpha=-0.5", "alpha=-0.5"),
        ("participation.per_round=21", "participation.per_round = 21: there are only 20 clients"),
        ("participation.per_round=0", "participation.per_round = 0: need a whole number of at least 1"),
        ("participation.share=0.5", "give per_round or share, not both"),
        ("optimizer.lr=-1", "SGD(lr=-1.0): need lr > 0"),
        ("optimizer.momentum=1", "need 0 ≤ momentum < 1"),
        ("evaluation.local_test=1", "local_test = 1.0: need 0 ≤ local_test < 1"),
        ("method=fedbug(ratio=2)", "need 0 ≤ ratio ≤ 1"),
        ("method=vanilla(thaw=[0,10])", "thaw"),
        ("method=feddyn(alpha=0)", "feddyn(alpha=0.0): need alpha > 0"),
        ("method=fedprox(mu=-1)", "need mu ≥ 0"),
        ("method=feddyn+fedavg", "it names two methods"),
        ("method=feddyn(0.1)", "arguments are written key=value"),
        ("method=fed avg", "cannot read"),
        ("model.name=standard-cnn", "images of 8×8 are too small"),
        ("device=3", "unknown key device"),
    ],
)
def test_a_wrong_setting_names_key_value_and_remedy(setting: str, message: str, tmp_path: Path) -> None:
    answer = kedge("run", "quickstart", "--set", setting, "--out", tmp_path / "run")
    assert answer.code == 2, answer
    assert message in answer.err
    assert "Traceback" not in answer.err
    assert not (tmp_path / "run").exists()


def test_debug_shows_the_traceback(tmp_path: Path) -> None:
    assert "Traceback" in kedge("run", "quickstart", "--set", "rounds=0", "--debug").err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["run", "quickstrat"], "no shipped experiment of this name. Did you mean 'quickstart'?"),
        (["run"], "name an experiment, as in kedge run quickstart"),
        (["run", "quickstart", "--set", "rounds"], "--set rounds: write key=value"),
        (["run", "quickstart", "--seeds", "0"], "--seeds 0: need at least 1"),
        (["run", "quickstart", "--methods", "fedavg, fedavg"], "--methods names the same run twice"),
        (["run", "quickstart", "--resume", "x"], "--resume continues the run with its own settings"),
        (["run", "--resume", "/nowhere"], "--resume /nowhere: no such folder"),
        (["run", "quickstart", "--device", "tpu"], "engine.device = 'tpu'"),
        (["compare", "/nowhere"], "/nowhere: no such folder"),
        (["compare", "/nowhere", "--target", "90"], "for 90 % write 0.9"),
        (["list", "method"], "kedge list method: no such kind. Did you mean 'methods'?"),
        (["bench", "overhed"], "Did you mean 'overhead'?"),
        (["bench", "--repeats", "0"], "--repeats 0: need at least 1"),
        (["audit", "fedavgg"], "fedavgg"),
    ],
)  # fmt: skip
def test_a_wrong_command_says_why(words: list[str], message: str) -> None:
    answer = kedge(*words)
    assert answer.code == 2, answer
    assert message in answer.err


@pytest.mark.slow
@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
@pytest.mark.parametrize(
    "words",
    [("run", "quickstart", "--set", "rounds=1"), ("bench", "overhead", "--no-compile", "--repeats", "1")],
)
def test_without_cuda_a_command_says_so_and_falls_back(words: tuple[str, ...], tmp_path: Path) -> None:
    out: list[str | Path] = ["--out", tmp_path / "run"] if words[0] == "run" else []
    answer = kedge(*words, "--device", "cuda", *out)
    assert answer.code == 0
    assert answer.err.count("torch finds no CUDA device: training on the CPU") == 1
    if out:
        kept = json.loads((tmp_path / "run" / "environment.json").read_text())
        assert kept["engine"]["device"] == "cpu"


def test_a_toml_file_with_a_syntax_error_is_named(tmp_path: Path) -> None:
    (tmp_path / "bad.toml").write_text("rounds = = 3")
    answer = kedge("run", tmp_path / "bad.toml")
    assert answer.code == 2
    assert "bad.toml is no valid TOML" in answer.err


def test_missing_data_exit_with_3_and_say_where_to_put_them(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("KEDGE_DATA", str(tmp_path))
    answer = kedge("run", "quickstart", "--set", "data.name=cifar_10")
    assert answer.code == 3
    assert f"{tmp_path}/cifar_10.npz is missing" in answer.err
    assert "Did you mean 'cifar10'?" in answer.err


def test_a_known_dataset_without_a_network_exits_with_3_and_says_which_file_to_put_where(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("KEDGE_DATA", str(tmp_path))
    monkeypatch.setenv("KEDGE_CACHE", str(tmp_path))
    monkeypatch.setenv("https_proxy", "http://127.0.0.1:9")  # no server has this port
    answer = kedge("run", "quickstart", "--set", "data.name=cifar10")
    assert answer.code == 3
    assert f"put cifar-10-python.tar.gz into {tmp_path}/cifar10" in answer.err


def npz(path: Path, x: np.ndarray, y: np.ndarray) -> None:
    np.savez(path, x_train=x, y_train=y, x_test=x[:10], y_test=y[:10])


def test_nan_in_the_data_exits_with_3(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    x = np.random.default_rng(0).standard_normal((100, 1, 8, 8)).astype(np.float32)
    x[7, 0, 0, 0] = np.nan
    npz(tmp_path / "mine.npz", x, np.arange(100) % 10)
    monkeypatch.setenv("KEDGE_DATA", str(tmp_path))
    answer = kedge("run", "quickstart", "--set", "data.name=mine")
    assert answer.code == 3
    assert "mine.npz" in answer.err
    assert "7" in answer.err


def linear(outputs: int = 3) -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(4, outputs))


def client(samples: int = 6, labels: int = 3) -> library.Dataset:
    return library.Dataset(torch.randn(samples, 4), torch.arange(samples) % labels)


def test_labels_outside_the_classes_are_refused() -> None:
    with pytest.raises(
        library.DataError, match="label 4 is outside the module's 3 outputs: labels run from 0 to 2"
    ):
        library.train(linear(3), [client(labels=5)])
    with pytest.raises(library.DataError, match="y is -1 in row 1; need class labels 0, 1, 2"):
        library.Dataset(torch.randn(2, 4), torch.tensor([0, -1]))


def test_a_model_of_another_size_than_the_classes_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(models.MODELS, "wrong", lambda shape, classes: linear_for(shape, classes + 1))
    answer = kedge("run", "quickstart", "--set", "model.name=wrong")
    assert answer.code == 2
    assert "the model has 11 outputs, the data have 10 classes (labels 0…9): make them agree" in answer.err


def linear_for(shape: tuple[int, ...], classes: int) -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(int(np.prod(shape)), classes))


def test_a_module_that_cannot_take_the_samples_is_refused() -> None:
    with pytest.raises(library.RequestError, match=r"the module cannot take samples of shape \(5,\)"):
        library.train(linear(), [library.Dataset(torch.randn(3, 5), [0, 1, 2])])


def test_samples_of_unequal_shape_are_refused() -> None:
    odd = library.Dataset(torch.randn(3, 5), [0, 1, 2])
    with pytest.raises(library.DataError, match=r"client 1 has samples of shape \(5,\), client 0 has \(4,\)"):
        library.train(linear(), [client(), odd])


def test_a_client_with_one_sample_and_one_with_one_class_train() -> None:
    one = library.Dataset(torch.randn(1, 4), [2])
    single = library.Dataset(torch.randn(5, 4), [1] * 5)
    result = library.train(linear(), [client(), one, single], test=client(), rounds=3, epochs=2, batch=2)
    assert len(result.history) == 3
    assert 0 <= result.accuracy <= 1


def test_a_diverging_run_names_round_client_and_method_and_keeps_its_history(tmp_path: Path) -> None:
    out = tmp_path / "run"
    answer = kedge("run", "quickstart", *SMALL, "--set", "optimizer.lr=1e30", "--set", "training.clip=1e30",
                   "--out", out, "--set", "method=fedprox")  # fmt: skip
    assert answer.code == 1
    assert "fedprox diverged in round 1: client" in answer.err
    assert "Lower optimizer.lr" in answer.err
    last = json.loads((out / "history.jsonl").read_text().splitlines()[-1])
    assert last["diverged"]
    assert last["rejected"][0]["client"] in last["clients"]
    assert kedge("compare", out).out.count("diverged") == 1


def test_diverging_uploads_can_be_dropped_instead(tmp_path: Path) -> None:
    wrong = (
        "--set",
        "optimizer.lr=1e30",
        "--set",
        "training.on_divergence=drop",
        "--set",
        "training.clip=1e30",
    )
    answer = kedge("run", "quickstart", *SMALL, *wrong, "--out", tmp_path / "run")
    assert answer.code == 0
    line = json.loads((tmp_path / "run/history.jsonl").read_text().splitlines()[0])
    assert [r["reason"] for r in line["rejected"]] == ["not finite"] * 5


def test_an_existing_run_folder_is_not_touched(tmp_path: Path) -> None:
    out = tmp_path / "run"
    assert kedge("run", "quickstart", *SMALL, "--out", out).code == 0
    before = (out / "history.jsonl").read_bytes()
    answer = kedge("run", "quickstart", *SMALL, "--out", out)
    assert answer.code == 2
    assert f"{out} exists already. Continue it with --resume {out}" in answer.err
    assert (out / "history.jsonl").read_bytes() == before
    assert kedge("run", "quickstart", *SMALL, "--out", out, "--force").code == 0
    assert "is finished already" in kedge("run", "--resume", out).err


def start_run(out: Path) -> None:
    """Make a run with two checkpoints that looks unfinished."""
    words = (*SMALL, "--set", "checkpoint.every=1", "--out", out)
    assert kedge("run", "quickstart", *words).code == 0
    (out / "model.safetensors").unlink()


def test_a_truncated_checkpoint_is_named_and_the_one_before_is_used(tmp_path: Path) -> None:
    out = tmp_path / "run"
    start_run(out)
    whole = json.loads((out / "history.jsonl").read_text().splitlines()[-1])
    file = out / "checkpoint/000003/tensors.safetensors"
    file.write_bytes(file.read_bytes()[:100])
    answer = kedge("run", "--resume", out)
    assert answer.code == 0
    assert "000003 is damaged: tensors.safetensors does not match its checksum. It is skipped." in answer.err
    again = json.loads((out / "history.jsonl").read_text().splitlines()[-1])
    assert {k: v for k, v in again.items() if k != "time"} == {k: v for k, v in whole.items() if k != "time"}


def test_damage_to_every_checkpoint_is_told(tmp_path: Path) -> None:
    out = tmp_path / "run"
    start_run(out)
    (out / "checkpoint/000003/manifest.json").write_text("{")
    (out / "checkpoint/000002/state.json").unlink()
    answer = kedge("run", "--resume", out)
    assert answer.code == 1
    assert "every version is damaged. Delete that folder to run again from the start" in answer.err
    shutil.rmtree(out / "checkpoint")
    assert kedge("run", "--resume", out).code == 0


def test_a_checkpoint_of_another_model_is_refused(tmp_path: Path) -> None:
    """In a folder of version 0.1, which has no kedge.json."""
    out = tmp_path / "run"
    start_run(out)
    (out / "kedge.json").unlink()
    config = (out / "config.toml").read_text()
    changed = config.replace(
        'name = "mlp"\nhidden = [\n    64,\n]', 'name = "mlp"\nhidden = [\n    8,\n    8,\n]'
    )
    assert changed != config
    (out / "config.toml").write_text(changed)
    answer = kedge("run", "--resume", out)
    assert answer.code == 1
    assert "is of another model" in answer.err


def test_a_full_disk_loses_nothing_that_was_saved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The disk is full at the third checkpoint; with free space again the run ends as without the error."""
    words = (*SMALL, "--set", "checkpoint.every=1")
    assert kedge("run", "quickstart", *words, "--out", tmp_path / "whole").code == 0
    real = folder.write

    def full(path: Path, content: bytes) -> None:
        if "000003" in str(path):
            path.write_bytes(content[: len(content) // 2])
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))
        real(path, content)

    monkeypatch.setattr(checkpoint, "write", full)
    out = tmp_path / "run"
    answer = kedge("run", "quickstart", *words, "--out", out)
    assert answer.code == 1
    assert "No space left on device" in answer.err
    assert f"Remove the cause, and resume with: kedge run --resume {out}" in answer.err
    assert sorted(p.name for p in (out / "checkpoint").iterdir()) == ["000001", "000002"]
    monkeypatch.setattr(checkpoint, "write", real)
    assert kedge("run", "--resume", out).code == 0
    assert (out / "model.safetensors").read_bytes() == (tmp_path / "whole/model.safetensors").read_bytes()


def test_a_really_full_disk(tmp_path: Path) -> None:
    """The same on a small file system, if this user may mount one."""
    disk = tmp_path / "disk"
    disk.mkdir()
    mounted = shutil.which("mount") and subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", str(disk)], capture_output=True, check=False
    )
    if not mounted or mounted.returncode:
        pytest.skip("may not mount a file system here")
    try:
        words = (
            *SMALL,
            "--set",
            "checkpoint.every=1",
            "--set",
            "model.hidden=[128]",
            "--set",
            "method=scaffold",
        )
        answer = kedge("run", "quickstart", *words, "--out", disk / "run")
        assert answer.code == 1
        assert "No space left on device" in answer.err
        assert "Traceback" not in answer.err
    finally:
        subprocess.run(["umount", str(disk)], check=True)


@pytest.mark.slow
def test_ctrl_c_stops_with_130_and_resumes_to_the_same_end(tmp_path: Path) -> None:
    words = [
        "--set",
        "rounds=60",
        "--set",
        "model.name=mlp",
        "--engine",
        "sequential",
        "--set",
        "engine.threads=1",
    ]
    out = tmp_path / "run"
    command = [sys.executable, "-m", "kedge", "run", "quickstart", *words, "--out", str(out)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    history = out / "history.jsonl"
    deadline = time.monotonic() + 60
    while not (history.exists() and len(history.read_text().splitlines()) >= 2):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 130, err
    assert "stopping after this round" in err
    assert f"interrupted; its state is saved. Resume with: kedge run --resume {out}" in err
    done = len(history.read_text().splitlines())
    assert done < 60
    assert [p.name for p in (out / "checkpoint").iterdir()][-1:] != []
    assert kedge("run", "--resume", out).code == 0
    assert len(history.read_text().splitlines()) == 60
    assert kedge("run", "quickstart", *words, "--out", tmp_path / "whole").code == 0
    assert (out / "model.safetensors").read_bytes() == (tmp_path / "whole/model.safetensors").read_bytes()
