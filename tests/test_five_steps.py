"""The five steps of CONTRIBUTING.md, taken with a method outside the package."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from tests.outside.toy import calm
from torch import nn

import kedge
from kedge.audit.registry.every_method import PROPERTIES

ROOT = Path(__file__).parent.parent
FILE = Path(__file__).parent / "outside" / "toy.py"
TOY = f"{FILE}:calm"


def outcome(*words: str, method: str | None = None) -> subprocess.CompletedProcess[str]:
    """A Python program in the checkout, and what became of it."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1"} | ({"KEDGE_METHOD": method} if method else {})
    # Coverage of this process has nothing to say about that one.
    environment = {k: v for k, v in environment.items() if not k.startswith(("COV_", "PYTEST_"))}
    return subprocess.run(
        [sys.executable, *words], capture_output=True, text=True, cwd=ROOT, env=environment, check=False
    )


def kedge_command(*words: str) -> subprocess.CompletedProcess[str]:
    return outcome("-m", "kedge", *words)


def test_step_1_the_file_is_a_method_that_kedge_trains() -> None:
    torch.manual_seed(0)
    clients = [kedge.Dataset(torch.randn(20, 5) + k, torch.full((20,), k)) for k in range(3)]
    module = nn.Sequential(nn.Linear(5, 8), nn.ReLU(), nn.Linear(8, 3))
    result = kedge.train(module, clients, test=clients[1], method=calm(0.01), rounds=3, batch=10)
    assert result.method == "calm"


@pytest.mark.slow
def test_step_2_its_name_works_in_a_configuration_with_its_arguments_and_any_schedule(tmp_path: Path) -> None:
    methods = f"{TOY}(beta=0.1), fedbug(ratio=0.2)+{TOY}, feddyn -> {TOY}@0.5"
    out = str(tmp_path / "runs")
    done = kedge_command(
        "run", "quickstart", "--methods", methods, "--set", "rounds=2", "--out", out, "--json"
    )
    assert done.returncode == 0, done.stderr
    assert all(label in done.stdout for label in ('"calm"', '"fedbug+calm"', '"feddyn->calm"'))
    wrong = kedge_command("run", "quickstart", "--methods", f"{TOY}(gamma=1)", "--out", str(tmp_path / "no"))
    assert wrong.returncode == 2
    assert "unknown key method.gamma" in wrong.stderr
    assert f"Allowed for name = '{TOY}': beta, step." in wrong.stderr


@pytest.mark.slow
def test_step_3_the_contract_runs_on_it() -> None:
    """Every property of every method, with this method in place of all others."""
    chosen = ("tests/contract", "-k", "outside", "-m", "not slow")
    quiet = ("-q", "-p", "no:xdist", "-p", "no:cacheprovider", "-o", "addopts=--import-mode=importlib")
    done = outcome("-m", "pytest", *chosen, *quiet, method=TOY)
    assert done.returncode == 0, done.stdout[-3000:]
    assert int(done.stdout.split(" passed")[0].split()[-1]) >= len(PROPERTIES) - 1  # it freezes nothing


@pytest.mark.slow
def test_step_4_the_audit_holds_it_against_its_objective() -> None:
    done = kedge_command("audit", TOY, "--objective", f"{FILE}:objective", "--json")
    assert done.returncode == 0, done.stdout + done.stderr
    assert '"closed form"' in done.stdout


@pytest.mark.slow
def test_step_5_an_experiment_names_it(tmp_path: Path) -> None:
    document = f'method = "{TOY}(beta=0.02)"\nrounds = 1\n[data]\nname = "synthetic"\nsamples = 60\n'
    (tmp_path / "calm.toml").write_text(document)
    done = kedge_command("run", str(tmp_path / "calm.toml"), "--out", str(tmp_path / "run"), "--json")
    assert done.returncode == 0, done.stderr
    assert "toy.py:calm" in (tmp_path / "run/config.toml").read_text()
