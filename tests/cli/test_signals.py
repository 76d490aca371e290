"""SIGTERM: kedge exits in time with code 130, keeps whole files, and prints the command that resumes."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.cli.command import kedge
from tests.cli.grids import FILE

# A network that stays in one call of a C library for an hour while a file of this name exists.
MODEL = """
import hashlib
import subprocess
from pathlib import Path
from torch import Tensor, nn

HERE = Path(__file__).parent

def block(name: str) -> None:
    if (HERE / name).exists():
        (HERE / "blocked").touch()
        hashlib.pbkdf2_hmac("sha256", b"", b"", 2**31 - 1)

class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        block("when made")
        self.last = nn.Linear(64, 10)

    def forward(self, x: Tensor) -> Tensor:
        block("when called")
        if (HERE / "when called by child").exists():
            (HERE / "blocked").touch()
            subprocess.run(["sleep", "3600"], check=True)
        out: Tensor = self.last(x.flatten(1))
        return out

def net() -> Net:
    return Net()
"""
EXPERIMENT = """
rounds = 6
data = "digits"
partition = { name = "iid", clients = 4 }
checkpoint = { every = 1 }
engine = { name = "sequential", threads = 1 }
"""


def started(*words: str | Path) -> subprocess.Popen[str]:
    """The command in its own process."""
    return subprocess.Popen(
        [sys.executable, "-m", "kedge", *map(str, words)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        start_new_session=True,  # a process group, which a batch system signals as a whole
    )


def until(process: subprocess.Popen[str], there: Callable[[], bool]) -> None:
    """Wait until `there` is true while the process runs."""
    deadline = time.monotonic() + 60
    while not there():
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.02)


def ended(process: subprocess.Popen[str], within: float) -> str:
    """Standard error of a process that ended in time."""
    _, err = process.communicate(timeout=within)
    assert process.returncode == 130, err
    assert "Traceback" not in err
    return err


def lines(folder: Path) -> int:
    history = folder / "history.jsonl"
    return history.read_bytes().count(b"\n") if history.exists() else 0


def files(tmp_path: Path) -> Path:
    (tmp_path / "net.py").write_text(MODEL)
    experiment = tmp_path / "mine.toml"
    experiment.write_text(EXPERIMENT + f'model = "{tmp_path / "net.py"}:net"\n')
    return experiment


def check_same_end(folder: Path, experiment: Path) -> None:
    """The resumed run in `folder` ends with the same bytes as a run without interruption."""
    assert kedge("run", "--resume", folder, "--quiet").code == 0
    whole = folder.with_name("whole")
    assert kedge("run", experiment, "--out", whole, "--quiet").code == 0
    assert (folder / "model.safetensors").read_bytes() == (whole / "model.safetensors").read_bytes()
    assert lines(folder) == lines(whole)


@pytest.mark.slow
@pytest.mark.parametrize("signals", [2, pytest.param(1, marks=pytest.mark.slow)])
def test_a_round_that_does_not_end_is_left(signals: int, tmp_path: Path) -> None:
    """The main thread is inside one call of a C library, so that no handler written in Python is called."""
    experiment, out = files(tmp_path), tmp_path / "run"
    process = started("run", experiment, "--out", out)
    until(process, lambda: lines(out) >= 2)
    (tmp_path / "when called").touch()
    until(process, (tmp_path / "blocked").exists)
    process.send_signal(signal.SIGTERM)
    if signals > 1:
        time.sleep(0.3)
        process.send_signal(signal.SIGTERM)
    err = ended(process, 10 if signals == 1 else 3)
    assert "SIGTERM: stopping after this round, at the latest in 8 s" in err
    assert f"interrupted; the last checkpoint is saved. Resume with: kedge run --resume {out}" in err
    assert lines(out) < 6
    (tmp_path / "when called").unlink()
    check_same_end(out, experiment)


@pytest.mark.slow
def test_a_child_that_the_same_signal_ends_is_no_failure_of_the_run(tmp_path: Path) -> None:
    """For example a compiler, if the whole process group gets the signal."""
    experiment, out = files(tmp_path), tmp_path / "run"
    process = started("run", experiment, "--out", out)
    until(process, lambda: lines(out) >= 1)
    (tmp_path / "when called by child").touch()
    until(process, (tmp_path / "blocked").exists)
    time.sleep(0.3)
    os.killpg(process.pid, signal.SIGTERM)
    err = ended(process, 3)
    assert f"interrupted; the last checkpoint is saved. Resume with: kedge run --resume {out}" in err


@pytest.mark.slow
def test_a_short_round_is_ended_and_its_state_saved(tmp_path: Path) -> None:
    experiment, out = files(tmp_path), tmp_path / "run"
    experiment.write_text(
        experiment.read_text().replace("rounds = 6", "rounds = 60").replace("= 1 }\neng", "= 500 }\neng")
    )
    process = started("run", experiment, "--out", out)
    until(process, lambda: lines(out) >= 2)
    process.send_signal(signal.SIGTERM)
    err = ended(process, 10)
    assert f"interrupted; its state is saved. Resume with: kedge run --resume {out}" in err
    assert 2 <= lines(out) < 60
    assert (out / f"checkpoint/{lines(out):06d}").is_dir()
    check_same_end(out, experiment)


@pytest.mark.slow
def test_before_a_run_began_there_is_nothing_to_go_on_with(tmp_path: Path) -> None:
    experiment, out = files(tmp_path), tmp_path / "run"
    (tmp_path / "when made").touch()
    process = started("run", experiment, "--out", out)
    until(process, (tmp_path / "blocked").exists)
    process.send_signal(signal.SIGTERM)
    time.sleep(0.3)
    process.send_signal(signal.SIGINT)
    assert "interrupted before the run started. Run the same command again." in ended(process, 3)
    assert not out.exists()


@pytest.mark.slow
def test_a_command_that_does_not_train_ends_at_once(tmp_path: Path) -> None:
    experiment = files(tmp_path)
    (tmp_path / "when made").touch()
    process = started("cost", experiment)
    until(process, (tmp_path / "blocked").exists)
    process.send_signal(signal.SIGTERM)
    assert ended(process, 3) == "interrupted\n"


def sweep(tmp_path: Path, *words: str) -> tuple[subprocess.Popen[str], list[Path]]:
    """A sweep of two seeds side by side, in its first rounds."""
    file, out = tmp_path / "grid.toml", tmp_path / "out"
    file.write_text(FILE + 'method = ["fedavg"]')
    folders = [out / f"method=fedavg/seed{seed}" for seed in (0, 1)]
    process = started("sweep", file, "--seeds", "2", "--out", out, *words)
    until(process, lambda: (folders[1] / "history.jsonl").exists())
    return process, folders


@pytest.mark.slow
def test_a_pack_is_stopped_after_its_round(tmp_path: Path) -> None:
    process, folders = sweep(tmp_path, "--set", "rounds=500", "--set", "checkpoint.every=1000")
    process.send_signal(signal.SIGTERM)
    err = ended(process, 10)
    assert f"all states are saved. Resume with: kedge sweep --resume {tmp_path / 'out'}" in err
    for folder in folders:
        assert 0 < lines(folder) < 500
        assert (folder / f"checkpoint/{lines(folder):06d}").is_dir()


@pytest.mark.slow
def test_a_pack_whose_round_does_not_end_is_left(tmp_path: Path) -> None:
    process, _ = sweep(tmp_path, "--set", "training.epochs=20000")
    process.send_signal(signal.SIGTERM)
    time.sleep(0.3)
    process.send_signal(signal.SIGTERM)
    err = ended(process, 3)
    assert f"the last checkpoint is saved. Resume with: kedge sweep --resume {tmp_path / 'out'}" in err
