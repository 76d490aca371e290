"""checkpoint.every = 0: a run saves no state; if it is interrupted it begins again and ends the same."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from tests.cli.command import kedge
from tests.cli.grids import FILE

NEVER = FILE.replace("checkpoint = { every = 1 }", "checkpoint = { every = 0 }").replace("[grid]\n", "")


def lines(folder: Path) -> int:
    history = folder / "history.jsonl"
    return history.read_bytes().count(b"\n") if history.exists() else 0


def history(folder: Path) -> list[dict[str, Any]]:
    """The lines of the history without the times."""
    found = [json.loads(line) for line in (folder / "history.jsonl").read_text().splitlines()]
    return [{key: value for key, value in line.items() if key != "time"} for line in found]


def interrupted(folder: Path, rounds: int, *words: str | Path) -> str:
    """The last message of a command that gets a SIGINT in the first rounds of the run in `folder`."""
    process = subprocess.Popen(
        [sys.executable, "-m", "kedge", *map(str, words)],
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    deadline = time.monotonic() + 60
    while lines(folder) < 2:
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.01)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=30)
    assert process.returncode == 130, err
    assert "Traceback" not in err
    assert 2 <= lines(folder) < rounds
    return err.splitlines()[-1]


def same(folder: Path, whole: Path) -> None:
    """The models have the same bytes, and the histories the same lines but for the times."""
    assert (folder / "model.safetensors").read_bytes() == (whole / "model.safetensors").read_bytes()
    assert history(folder) == history(whole)
    assert not (folder / "checkpoint").exists()


@pytest.mark.slow
def test_an_interrupted_run_says_that_nothing_is_saved_and_begins_again(tmp_path: Path) -> None:
    file, out = tmp_path / "mine.toml", tmp_path / "out"
    file.write_text(NEVER.replace("rounds = 3", "rounds = 100"))
    last = interrupted(out, 100, "run", file, "--out", out)
    again = f"kedge run --resume {out}"
    assert last == f"interrupted; nothing is saved (checkpoint.every = 0). Start again with: {again}"
    assert not (out / "checkpoint").exists()
    assert not (out / "model.safetensors").exists()
    answer = kedge(*again.split()[1:], "--quiet")
    assert answer == (0, "", f"{out} has no checkpoint: the run starts again at round 1.\n")
    assert kedge("run", file, "--out", tmp_path / "whole", "--quiet").code == 0
    same(out, tmp_path / "whole")
    assert "is finished already" in kedge(*again.split()[1:]).err


@pytest.mark.slow
def test_an_interrupted_sweep_says_so_and_trains_finished_runs_no_second_time(tmp_path: Path) -> None:
    file, out = tmp_path / "grid.toml", tmp_path / "out"
    file.write_text(NEVER.replace("rounds = 3", "rounds = 100") + "[grid]\nrounds = [3, 100]\n")
    first, second = out / "rounds=3/seed0", out / "rounds=100/seed0"
    last = interrupted(second, 100, "sweep", file, "--out", out, "--pack", "1")
    again = f"kedge sweep --resume {out}"
    assert last == f"interrupted; nothing is saved (checkpoint.every = 0). Start again with: {again}"
    stamp = (first / "model.safetensors").stat().st_mtime_ns
    assert kedge(*again.split()[1:], "--quiet").code == 0
    assert (first / "model.safetensors").stat().st_mtime_ns == stamp
    file.write_text(NEVER.replace("rounds = 3", "rounds = 100"))
    assert kedge("run", file, "--out", tmp_path / "whole", "--quiet").code == 0
    same(second, tmp_path / "whole")
