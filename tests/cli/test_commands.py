"""The commands as a user types them, and the files that they write."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file
from tests.cli.command import SMALL, kedge

import kedge as library


def test_a_run_leaves_the_promised_files_and_its_config_gives_the_same_run(tmp_path: Path) -> None:
    out = tmp_path / "run"
    answer = kedge("run", "quickstart", *SMALL, "--set", "evaluation.local_test=0.2", "--out", out)
    assert answer.code == 0, answer
    assert "fedavg" in answer.out
    assert {p.name for p in out.iterdir()} == {
        "kedge.json", "config.toml", "partition.npz", "environment.json", "history.jsonl", "clients.jsonl",
        "checkpoint", "model.safetensors", "average.safetensors",
    }  # fmt: skip
    lines = [json.loads(line) for line in (out / "history.jsonl").read_text().splitlines()]
    assert [line["round"] for line in lines] == [1, 2, 3]
    names = {f"{model}.{where}.{what}" for model in ("distributed", "average")
             for where in ("global", "local") for what in ("accuracy", "loss")}  # fmt: skip
    assert names <= set(lines[-1])
    assert {"seconds", "samples_per_second"} <= set(lines[-1]["time"])
    each = json.loads((out / "clients.jsonl").read_text().splitlines()[-1])
    assert len(each["distributed.local.accuracy"]) == 20
    environment = json.loads((out / "environment.json").read_text())
    assert environment["engine"]["name"] == "sequential"
    assert environment["seed"] == 0
    again = tmp_path / "again"
    assert kedge("run", out / "config.toml", "--out", again).code == 0
    assert (again / "model.safetensors").read_bytes() == (out / "model.safetensors").read_bytes()
    assert (again / "config.toml").read_bytes() == (out / "config.toml").read_bytes()


@pytest.mark.slow
def test_several_methods_and_seeds_give_a_table_a_plot_and_one_folder_each(tmp_path: Path) -> None:
    out = tmp_path / "runs"
    words = ("--methods", "fedavg, feddyn(alpha=0.1, scaling=data), fedbug+scaffold", "--seeds", "2")
    answer = kedge("run", "quickstart", *SMALL, *words, "--out", out, "--json")
    assert answer.code == 0, answer
    result = answer.json()
    assert [row["method"] for row in result["runs"]] == ["fedavg", "feddyn", "fedbug+scaffold"]
    assert all(row["runs"] == 2 and row["accuracy_std"] is not None for row in result["runs"])
    assert Path(result["plot"]).read_bytes().startswith(b"\x89PNG")
    folders = {str(p.parent.relative_to(out)) for p in out.rglob("config.toml")}
    assert "feddyn-alpha-0.1-scaling-data/seed1" in folders
    assert len(folders) == 6
    rows = kedge("compare", out, "--target", "0.05", "--json").json()["runs"]
    assert [row["method"] for row in rows] == [
        "fedavg",
        "feddyn",
        "fedbug+scaffold",
    ]  # in the order of --methods
    assert all(row["rounds_to_target"] >= 1 for row in rows)
    table = kedge("compare", out, "--target", "0.05", "--plot", tmp_path / "c.png")
    assert table.code == 0
    assert "rounds to 5 %" in table.out
    assert (tmp_path / "c.png").stat().st_size > 10_000


@pytest.mark.slow
def test_several_runs_resume_where_they_stopped(tmp_path: Path) -> None:
    """A finished, a started and a missing run all end as without interruption."""
    words = (*SMALL, "--methods", "fedavg,feddyn,scaffold")
    assert kedge("run", "quickstart", *words, "--out", tmp_path / "whole").code == 0
    out = tmp_path / "broken"
    assert kedge("run", "quickstart", *words, "--out", out).code == 0
    for path in sorted((out / "scaffold").rglob("*"), reverse=True):
        path.rmdir() if path.is_dir() else path.unlink()
    (out / "scaffold").rmdir()
    (out / "feddyn/model.safetensors").unlink()
    answer = kedge("run", "--resume", out)
    assert answer.code == 0, answer
    assert "fedavg is finished already" in answer.err
    for method in ("fedavg", "feddyn", "scaffold"):
        file = Path(method) / "model.safetensors"
        assert (out / file).read_bytes() == (tmp_path / "whole" / file).read_bytes()


def test_one_diverging_method_does_not_stop_the_others(tmp_path: Path) -> None:
    words = ("--methods", "feddyn(alpha=1e30), fedavg", "--set", "training.clip=10")
    answer = kedge("run", "quickstart", *SMALL, *words, "--out", tmp_path / "runs")
    assert answer.code == 1
    assert "feddyn diverged in round 1" in answer.err
    assert "fedavg" in answer.out


def test_list_names_everything_with_json() -> None:
    everything = kedge("list", "--json").json()
    assert {"methods", "schedules", "models", "datasets", "partitions", "experiments", "engines"} <= set(
        everything
    )
    names = {row["name"] for row in kedge("list", "methods", "--json").json()}
    assert names >= {"fedavg", "fedprox", "feddyn", "scaffold", "fedavgm", "fedadam", "fedexp", "fednova"}
    schedules = {row["name"]: row for row in everything["schedules"]}
    assert set(schedules) >= {"fedbug", "top-down", "fix-last", "fix-last-two", "vanilla", "anti"}
    assert schedules["anti"]["arguments"] == {"thaw": [0, 100, 200], "strict": False}
    feddyn = next(row for row in everything["methods"] if row["name"] == "feddyn")
    assert feddyn["paper"] == "Acar et al., 2021"
    assert feddyn["arguments"] == {"alpha": 0.01, "scaling": "uniform"}
    assert "quickstart" in kedge("list", "experiments").out
    assert "projection=256" in kedge("list", "methods").out
    assert "hidden=[64]" in kedge("list", "models").out


@pytest.mark.slow
def test_audit_passes_and_says_so_in_json() -> None:
    result = kedge("audit", "fedprox", "--json")
    assert result.code == 0
    assert result.json()["passed"]
    assert {row["method"] for row in result.json()["rows"]} >= {"fedprox"}
    assert "checks pass" in kedge("audit", "fedprox").out


@pytest.mark.slow
def test_quiet_says_nothing_and_the_output_of_a_pipe_has_no_bar(tmp_path: Path) -> None:
    answer = kedge("run", "quickstart", *SMALL, "--out", tmp_path / "a", "--quiet")
    assert (answer.code, answer.out, answer.err) == (0, "", "")
    piped = subprocess.run(
        [sys.executable, "-m", "kedge", "run", "quickstart", *SMALL, "--out", str(tmp_path / "b")],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert piped.stderr == ""
    assert "\x1b" not in piped.stdout


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "openpty"), reason="no pseudo-terminals here")
def test_a_terminal_shows_a_bar_with_round_accuracy_speed_and_time_left(tmp_path: Path) -> None:
    leader, follower = os.openpty()
    process = subprocess.Popen(
        [sys.executable, "-m", "kedge", "run", "quickstart", *SMALL, "--out", str(tmp_path / "run")],
        stdout=subprocess.PIPE, stderr=follower, env={**os.environ, "COLUMNS": "120", "TERM": "xterm"},
    )  # fmt: skip
    os.close(follower)
    shown = ""
    try:
        while piece := os.read(leader, 65536):
            shown += piece.decode(errors="replace")
    except OSError:  # Linux raises it if the other end is closed
        pass
    process.communicate()
    os.close(leader)
    for part in ("fedavg", "3/3", "accuracy", "samples/s", "left"):
        assert part in shown


def test_python_run_is_the_same_as_the_command(tmp_path: Path) -> None:
    assert kedge("run", "quickstart", *SMALL, "--out", tmp_path / "run").code == 0
    settings: dict[str, Any] = {"training.epochs": 1, "model.name": "mlp", "engine.name": "sequential"}
    result = library.run("quickstart", rounds=3, **settings)
    saved = load_file(tmp_path / "run/model.safetensors")
    assert saved.keys() == result.model.keys()
    assert all(bool((saved[k] == result.model[k]).all()) for k in saved)
    assert len(result.history) == 3
    assert result.accuracy == result.history[-1]["distributed.global.accuracy"]
    assert result.best[1] >= result.accuracy


@pytest.mark.slow
def test_output_that_nobody_reads_to_the_end_ends_quietly() -> None:
    words = [sys.executable, "-m", "kedge", "list", "methods", "--json"]
    ended = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert ended.stdout is not None
    assert ended.stderr is not None
    ended.stdout.close()  # before a word is written
    assert ended.stderr.read() == b""
    ended.stderr.close()
    assert ended.wait(60) == 1


def test_it_tells_its_version() -> None:
    answer = kedge("--version")
    assert answer.code == 0
    assert answer.out == f"kedge {library.__version__}\n"


def test_a_command_that_compiles_nothing_does_not_wait_for_the_compiler() -> None:
    heavy = "torch._dynamo", "torch._inductor", "sympy", "torchvision", "matplotlib", "plotly", "ray", "flwr"
    asked = f"import sys, kedge.cli; print([name for name in {heavy} if name in sys.modules])"
    found = subprocess.run([sys.executable, "-c", asked], capture_output=True, text=True, check=True)
    assert found.stdout == "[]\n"
