"""Runs on a cluster of their own: the same history, the same files after a kill, no process left."""

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.slow

EXPERIMENT = """
name = "clusters"
rounds = {rounds}
method = "fedrod -> feddyn@0.5"
model = {{ name = "mlp", hidden = [8] }}
partition = {{ name = "dirichlet", clients = 8, alpha = 0.5 }}
participation = {{ rule = "exact", per_round = 4 }}
evaluation = {{ every = 2, local_test = 0.2, tune = "all", tune_epochs = 1, tune_every = 4 }}
checkpoint.every = 2
training.epochs = 1
[engine]
precision = "fp64"
worker_engine = "sequential"
workers = 2
"""


@pytest.fixture
def ray_folder(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The folder of Ray's files; the command line of each of Ray's processes contains its name."""
    pytest.importorskip("ray")
    folder = tempfile.mkdtemp(prefix="kedge-ray-", dir="/tmp")  # names of sockets must be short
    monkeypatch.setenv("RAY_TMPDIR", folder)
    monkeypatch.setenv("RAY_OVERRIDE_RESOURCES", '{"CPU": 2}')
    yield folder
    shutil.rmtree(folder, ignore_errors=True)


def command(*words: str | Path) -> list[str]:
    return [sys.executable, "-m", "kedge", *map(str, words)]


def kedge(*words: str | Path) -> None:
    """Run the program to its end."""
    subprocess.run(command(*words, "--quiet"), check=True, timeout=300)


def write_experiment(folder: Path, rounds: int) -> Path:
    path = folder / "clusters.toml"
    path.write_text(EXPERIMENT.format(rounds=rounds))
    return path


def lines(run: Path, name: str = "history.jsonl") -> list[dict[str, Any]]:
    """The lines of a file of a run, without times."""
    found = [json.loads(line) for line in (run / name).read_text().splitlines()]
    return [{k: v for k, v in line.items() if k not in ("time", "seconds")} for line in found]


def numbers(value: Any) -> list[float]:
    """All numbers of a JSON value, in order."""
    if isinstance(value, dict):
        return [number for key in sorted(value) for number in numbers(value[key])]
    if isinstance(value, list):
        return [number for inner in value for number in numbers(inner)]
    return [value] if isinstance(value, int | float) else []


def ray_processes(folder: str) -> list[str]:
    """The command lines of the processes of the cluster with this folder."""
    found = []
    for file in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            text = file.read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:  # the process has ended
            continue
        if folder in text:
            found.append(text)
    return found


def test_a_run_on_a_cluster_has_the_history_of_a_run_in_one_process(tmp_path: Path, ray_folder: str) -> None:
    """Personal models and fine-tuned models are scored on the workers."""
    experiment = write_experiment(tmp_path, 6)
    kedge("run", experiment, "--engine", "sequential", "--out", tmp_path / "one")
    kedge("run", experiment, "--engine", "ray", "--out", tmp_path / "cluster")
    for name in ("history.jsonl", "clients.jsonl"):
        left, right = lines(tmp_path / "one", name), lines(tmp_path / "cluster", name)
        assert [sorted(line) for line in left] == [sorted(line) for line in right]
        assert numbers(left) == pytest.approx(numbers(right), rel=1e-12)
    assert any("personal.local.accuracy.tuned" in line for line in lines(tmp_path / "cluster"))
    settings = json.loads((tmp_path / "cluster" / "environment.json").read_text())["engine"]
    assert (settings["name"], settings["workers"]) == ("ray", 2)
    assert not ray_processes(ray_folder)


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_a_killed_driver_leaves_no_process_and_resumes_to_the_same_bytes(
    tmp_path: Path, ray_folder: str
) -> None:
    experiment = write_experiment(tmp_path, 12)
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    kedge("run", experiment, "--engine", "ray", "--out", whole)
    driver = subprocess.Popen(command("run", experiment, "--engine", "ray", "--out", killed, "--quiet"))
    history = killed / "history.jsonl"
    wait_until(lambda: history.is_file() and history.read_bytes().count(b"\n") >= 5, 120)
    assert ray_processes(ray_folder)
    os.kill(driver.pid, signal.SIGKILL)
    assert driver.wait() == -signal.SIGKILL
    wait_until(lambda: not ray_processes(ray_folder), 60)
    assert history.read_bytes().count(b"\n") < 12
    kedge("run", "--resume", killed)
    assert lines(killed) == lines(whole)
    assert lines(killed, "clients.jsonl") == lines(whole, "clients.jsonl")
    for name in ("model.safetensors", "config.toml"):
        assert (killed / name).read_bytes() == (whole / name).read_bytes()


def wait_until(condition: Any, seconds: float) -> None:
    """Wait until the condition holds; fail after `seconds`."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "timeout"
        time.sleep(0.05)
