"""kedge sweep as a user types it, and `kedge run --seeds`: cells, folders, failures and resuming."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file
from tests.cli.command import kedge
from tests.cli.grids import CELLS, FILE, GRID, written

from kedge.running.recording import evaluation, recorder


def lines(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "history.jsonl").read_text().splitlines()]


def packed(folder: Path) -> int:
    return int(json.loads((folder / "environment.json").read_text())["engine"]["packed"])


def check_same(left: Path, right: Path) -> None:
    """The final models agree to 1e-12 of the largest number."""
    mine, other = load_file(left / "model.safetensors"), load_file(right / "model.safetensors")
    largest = max(float(v.abs().max()) for v in other.values())
    assert max(float((v - other[k]).abs().max()) for k, v in mine.items()) < 1e-12 * largest


@pytest.mark.slow
def test_a_grid_of_methods_and_partitions_over_seeds(tmp_path: Path) -> None:
    out = tmp_path / "out"
    answer = kedge("sweep", written(tmp_path, GRID), "--seeds", "2", "--out", out, "--json")
    assert (answer.code, answer.err) == (0, "")
    result = answer.json()
    assert [row["method"] for row in result["cells"]] == CELLS
    assert result["cells"][3]["cell"] == {"method": "fedbug + feddyn(alpha=0.1)", "partition.alpha": 1.0}
    assert all(row["runs"] == 2 and row["complete"] for row in result["cells"])
    assert all(row["accuracy_std"] is not None for row in result["cells"])
    assert result["failed"] == []
    folders = sorted(str(p.parent.relative_to(out)) for p in out.rglob("model.safetensors"))
    assert folders == sorted(f"{cell}/seed{seed}" for cell in CELLS for seed in (0, 1))
    # A method's partitions and seeds train side by side, and end as they would have alone.
    assert {packed(out / folder) for folder in folders} == {4}
    words = ("--set", "method=fedbug+feddyn(alpha=0.1)", "--set", "partition.alpha=1.0", "--seed", "1")
    plain = tmp_path / "plain.toml"
    plain.write_text(FILE.replace("[grid]", ""))
    assert kedge("run", plain, *words, "--out", tmp_path / "alone").code == 0
    check_same(out / CELLS[3] / "seed1", tmp_path / "alone")
    rows = kedge("compare", out, "--json").json()["runs"]
    assert [row["accuracy"] for row in rows] == [
        row["accuracy"] for row in result["cells"]
    ]  # in the order of the grid
    table = kedge("sweep", "--resume", out)
    assert table.code == 0
    assert table.err.count("is finished already") == 8
    assert table.out.startswith("cell ")
    assert all(cell in table.out for cell in CELLS)
    assert " ± " in table.out


@pytest.mark.slow
def test_what_is_done_is_left_and_the_rest_goes_on(tmp_path: Path) -> None:
    """One run finished, one half done, one not begun; the fourth cell's diverges."""
    file = written(tmp_path, '"optimizer.lr" = [0.05, 0.1]')
    words = (file, "--seeds", "2")
    assert kedge("sweep", *words, "--out", tmp_path / "whole", "--quiet").code == 0
    out = tmp_path / "out"
    assert kedge("sweep", *words, "--out", out, "--quiet").code == 0
    done, half, missing = (
        out / f"optimizer.lr={lr}/seed{seed}" for lr, seed in ((0.05, 0), (0.05, 1), (0.1, 0))
    )
    stamp = (done / "model.safetensors").stat().st_mtime_ns
    (half / "model.safetensors").unlink()
    shutil.rmtree(half / "checkpoint/000003")
    shutil.rmtree(missing)
    answer = kedge("sweep", "--resume", out, "--json")
    assert answer.code == 0, answer
    assert answer.err.count("is finished already") == 2
    assert (done / "model.safetensors").stat().st_mtime_ns == stamp
    for folder in (half, missing):
        check_same(folder, tmp_path / "whole" / folder.relative_to(out))
        assert len(lines(folder)) == 3
    assert all(row["complete"] and row["runs"] == 2 for row in answer.json()["cells"])


def test_a_cell_that_fails_is_told_and_tried_again(tmp_path: Path) -> None:
    """One cell diverges, one cannot begin; the others are whole, and the exit code says that not all are."""
    file = written(tmp_path, '"optimizer.lr" = [0.1, 1e300]\n"participation.per_round" = [3, 7]')
    file.write_text(file.read_text().replace("clip = 10.0", "clip = 1e300"))
    out = tmp_path / "out"
    answer = kedge("sweep", file, "--out", out, "--json")
    assert answer.code == 1
    assert f"error: {out}/optimizer.lr=1e+300,participation.per_round=3/seed0: fedavg diverged" in answer.err
    assert "participation.per_round = 7: there are only 6 clients" in answer.err
    assert "Traceback" not in answer.err
    result = answer.json()
    assert [(row["cell"]["optimizer.lr"], row["complete"], row["diverged"]) for row in result["cells"]] == [
        (0.1, True, False),
        (1e300, False, True),
    ]
    assert len(result["failed"]) == 3
    again = kedge("sweep", "--resume", out)
    assert again.code == 1
    assert "is finished already" in again.err
    assert again.err.count("error: ") == 3
    assert "diverged" in again.out


def test_a_mistake_of_the_program_shows_its_traceback_and_spares_the_others(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    evaluate = evaluation.start_evaluation

    def broken(task: Any, *rest: Any) -> Any:
        if task.seed == 1:
            raise ZeroDivisionError("as if")
        return evaluate(task, *rest)

    monkeypatch.setattr(recorder, "start_evaluation", broken)
    answer = kedge(
        "sweep", written(tmp_path, 'method = ["fedavg"]'), "--seeds", "3", "--out", tmp_path / "out", "--json"
    )
    assert answer.code == 1
    assert "in broken" in answer.err
    assert f"error: {tmp_path}/out/method=fedavg/seed1: ZeroDivisionError: as if" in answer.err
    (row,) = answer.json()["cells"]
    assert (row["runs"], row["complete"]) == (3, False)
    assert [len(lines(tmp_path / f"out/method=fedavg/seed{seed}")) for seed in (0, 1, 2)] == [3, 0, 3]


@pytest.mark.slow
def test_seeds_of_a_run_are_packed_and_end_as_one_after_another(tmp_path: Path) -> None:
    words = (
        "run", "quickstart", "--methods", "fedavg, scaffold", "--seeds", "2", "--precision", "fp64",
        "--set", "rounds=3", "--set", "training.epochs=1", "--set", "model.name=mlp", "--quiet",
    )  # fmt: skip
    assert kedge(*words, "--out", tmp_path / "packed") == (0, "", "")
    assert kedge(*words, "--out", tmp_path / "alone", "--pack", "1") == (0, "", "")
    for name in ("fedavg/seed0", "fedavg/seed1", "scaffold/seed0", "scaffold/seed1"):
        check_same(tmp_path / "packed" / name, tmp_path / "alone" / name)
        assert (packed(tmp_path / "packed" / name), packed(tmp_path / "alone" / name)) == (2, 1)


def test_run_and_sweep_know_each_other(tmp_path: Path) -> None:
    file = written(tmp_path, GRID)
    answer = kedge("run", file, "--out", tmp_path / "out")
    assert answer.code == 2
    assert "it is a sweep. Use kedge sweep" in answer.err
    assert kedge("cost", file).code == 2
    (tmp_path / "sweep.json").write_text("{}")
    answer = kedge("run", "--resume", tmp_path)
    assert answer.code == 2
    assert f"Resume with: kedge sweep --resume {tmp_path}" in answer.err


def started(tmp_path: Path, *words: str) -> tuple[subprocess.Popen[str], Path]:
    """A sweep of two seeds in a process of its own, in its first rounds."""
    file, out = written(tmp_path, 'method = ["fedavg"]'), tmp_path / "out"
    command = [sys.executable, "-m", "kedge", "sweep", str(file), "--seeds", "2", "--out", str(out), *words]
    process = subprocess.Popen(
        command, stderr=subprocess.PIPE, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"}
    )
    deadline = time.monotonic() + 60
    while not (out / "method=fedavg/seed1/history.jsonl").exists():
        assert process.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.05)
    return process, out


@pytest.mark.slow
def test_ctrl_c_saves_every_run_and_the_sweep_goes_on(tmp_path: Path) -> None:
    process, out = started(tmp_path, "--set", "rounds=60", "--set", "checkpoint.every=100")
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 130, err
    assert "stopping after this round" in err
    assert f"interrupted; all states are saved. Resume with: kedge sweep --resume {out}" in err
    for seed in (0, 1):
        folder = out / f"method=fedavg/seed{seed}"
        done = len(lines(folder))
        assert 0 < done < 60
        assert (folder / f"checkpoint/{done:06d}").is_dir()
    assert kedge("sweep", "--resume", out, "--quiet").code == 0
    assert [len(lines(out / f"method=fedavg/seed{seed}")) for seed in (0, 1)] == [60, 60]


@pytest.mark.slow
def test_ctrl_c_twice_does_not_wait_for_the_round(tmp_path: Path) -> None:
    process, out = started(tmp_path, "--set", "training.epochs=20000")  # a round of minutes
    process.send_signal(signal.SIGINT)
    time.sleep(0.3)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=20)
    assert process.returncode == 130, err
    assert f"the last checkpoint is saved. Resume with: kedge sweep --resume {out}" in err
    assert "Traceback" not in err
