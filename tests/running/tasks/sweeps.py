"""A small sweep with a method that can end its process once, and comparisons of two folders of a sweep."""

import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

FILE = """
name = "grid"
rounds = 8
data = "digits"
model = {{ name = "mlp", hidden = [8] }}
partition = {{ name = "dirichlet", clients = 6, alpha = 0.3 }}
participation.per_round = 3
training = {{ batch = 20, epochs = {epochs} }}
optimizer = {{ name = "sgd", lr = 0.1 }}
checkpoint.every = 2
engine = {{ compile = "off", threads = 1, precision = "fp64", worker_engine = "{engine}" }}

[grid]
{grid}
"""
METHOD = '''
"""FedAvg whose clients end their process in one round: once, or each time if the marker is "always"."""

import os
from dataclasses import dataclass, replace
from pathlib import Path

import kedge


@dataclass(frozen=True)
class Lethal(kedge.Correction):
    marker: str
    name = "lethal"

    def loss(self, step):
        if int(step.round) == 5 and is_first(Path(self.marker)):
            os.kill(os.getpid(), 9)
        return step.params[next(iter(step.params))].sum() * 0


def is_first(marker):
    if marker.name == "always":
        return True
    try:
        marker.mkdir()
    except FileExistsError:
        return False
    return True


def lethal(marker: str = "nowhere"):
    return replace(kedge.fedavg(), name="lethal", corrections=(Lethal(marker),))
'''


def write_sweep(folder: Path, grid: str, engine: str = "sequential", epochs: int = 1) -> Path:
    """The file of a sweep with this grid; `engine` is the engine of the workers."""
    (folder / "lethal.py").write_text(METHOD)
    path = folder / "grid.toml"
    path.write_text(FILE.format(grid=grid, engine=engine, epochs=epochs))
    return path


def lines(run: Path) -> list[dict[str, Any]]:
    """The lines of a run's history, without times."""
    found = [json.loads(line) for line in (run / "history.jsonl").read_text().splitlines()]
    return [{k: v for k, v in line.items() if k != "time"} for line in found]


def runs_of(sweep: Path) -> list[Path]:
    """The folders of the runs of a sweep that have started, relative to it."""
    return sorted(file.parent.relative_to(sweep) for file in sweep.rglob("config.toml"))


def check_same_bytes(left: Path, right: Path) -> None:
    """All runs of two sweeps have the same histories, models and checkpoints."""
    assert runs_of(left) == runs_of(right) != []
    for run in runs_of(left):
        assert lines(left / run) == lines(right / run)
        files = sorted(p.relative_to(left) for p in (left / run).rglob("*.safetensors"))
        assert files == sorted(p.relative_to(right) for p in (right / run).rglob("*.safetensors"))
        for file in files:
            assert (left / file).read_bytes() == (right / file).read_bytes(), file


def engine_of(run: Path) -> dict[str, Any]:
    """The engine settings that a run recorded."""
    settings: dict[str, Any] = json.loads((run / "environment.json").read_text())["engine"]
    return settings


def start(*words: str | Path) -> subprocess.Popen[bytes]:
    """The program in a process of its own."""
    return subprocess.Popen([sys.executable, "-m", "kedge", *map(str, words)])


def wait_until(condition: Callable[[], bool], seconds: float) -> None:
    """Wait until the condition holds; fail after `seconds`."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "timeout"
        time.sleep(0.05)


@contextmanager
def machines(number: int) -> Iterator[str]:
    """A cluster of this many machines with one core each, in a process of its own; yields its address."""
    command = [sys.executable, "-m", "tests.running.tasks.machines", str(number)]
    root = Path(__file__).parents[3]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=root)
    assert process.stdin
    assert process.stdout
    try:
        yield process.stdout.readline().split()[-1]
    finally:
        process.communicate(timeout=60)
