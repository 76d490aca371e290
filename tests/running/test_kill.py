"""Exact resume: a run killed with SIGKILL at random times ends with the bytes of an undisturbed run."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from kedge.config.document import read
from kedge.config.experiment import resolve
from kedge.running.execute import execute

METHODS = {
    "fedavg": "",
    "fedprox(mu=0.1)": "",
    "feddyn(alpha=0.1)": "",
    "feddyn(alpha=0.1, scaling=data)": "statistics = 'local'",
    "scaffold": "",
    "fedbug+feddyn": "statistics = 'shared'",
    "fedbug+scaffold": "",
}
KILLS = 4  # each: 28 in all

EXPERIMENT = """
name = "killed"
rounds = 12
method = "{method}"
partition = {{ name = "dirichlet-classes", clients = 8, alpha = 0.5, minimum = 4 }}
model = {{ name = "small-cnn", norm = "{norm}" }}
participation = {{ per_round = 4 }}
optimizer = {{ name = "sgd", lr = 0.05 }}
evaluation = {{ local_test = 0.2 }}
checkpoint = {{ every = 2 }}
engine = {{ name = "{engine}", compile = "off", threads = 1 }}
[training]
epochs = 2
batch = 16
{training}
"""


def without_times(path: Path) -> list[dict[str, object]]:
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    return [{k: v for k, v in line.items() if k != "time"} for line in lines]


@pytest.mark.slow
@pytest.mark.parametrize("method", METHODS)
def test_a_killed_run_resumes_to_the_same_bytes(method: str, tmp_path: Path) -> None:
    number = list(METHODS).index(method)
    config = tmp_path / "killed.toml"
    norm = "batch" if METHODS[method] else "none"
    engine = ("sequential", "stacked")[number % 2]
    config.write_text(EXPERIMENT.format(method=method, training=METHODS[method], norm=norm, engine=engine))
    script = Path(__file__).with_name("killed_runs.py")
    killed = subprocess.run(
        [sys.executable, str(script), str(tmp_path / "killed"), str(config), str(KILLS), str(number)],
        capture_output=True,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        check=False,
    )
    assert killed.returncode == 0, killed.stderr
    assert int(killed.stdout) == KILLS
    execute(resolve(read(config)), tmp_path / "whole")
    for name in ("model.safetensors", "average.safetensors", "clients.jsonl", "config.toml"):
        assert (tmp_path / "killed" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes(), name
    assert without_times(tmp_path / "killed/history.jsonl") == without_times(tmp_path / "whole/history.jsonl")
    newest = sorted((tmp_path / "whole/checkpoint").iterdir())[-1].name
    tensors = f"checkpoint/{newest}/tensors.safetensors"  # client memories are in here
    assert (tmp_path / "killed" / tensors).read_bytes() == (tmp_path / "whole" / tensors).read_bytes()
