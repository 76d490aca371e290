"""Small published tables of digits, in a folder of their own: they train for real in a second."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from kedge.config import document
from kedge.reproduce import paper
from kedge.reproduce.plan import Run, Table, runs_of, table_of
from kedge.reproduce.records import Record, Sitting
from kedge.reproduce.work import TrainOptions

EXPERIMENT = """
name = "{name}"
rounds = {rounds}
data = "digits"
model = "mlp"
participation = {{ per_round = 2 }}
training = {{ batch = 50, epochs = {epochs} }}
optimizer = {{ name = "sgd", lr = 0.1 }}
evaluation = {{ every = 10, all = true }}
engine = {{ name = "stacked", compile = "off", threads = 1, precision = "fp64", device = "cpu" }}

[grid]
{grid}

[paper]
title = "Digits"
source = "Nobody (2025), Table 1"
metric = "all.global.accuracy"

[[paper.claims]]
says = "Prox is above Avg."
rows = [["Prox", "Avg"]]
"""
GRID = """
method = ["fedavg", "fedprox(mu=1.0)"]
partition = ["iid(clients=4)", "dirichlet(clients=4, alpha=0.3)"]
"""
NUMBERS = """block,row,column,value,method,partition
equal,Avg,IID,90,fedavg,iid(clients=4)
unequal,Avg,α = 0.3,80,fedavg,"dirichlet(clients=4, alpha=0.3)"
equal,Prox,IID,91,fedprox(mu=1.0),iid(clients=4)
unequal,Prox,α = 0.3,81,fedprox(mu=1.0),"dirichlet(clients=4, alpha=0.3)"
"""
# Shares the cell of FedAvg and IID with the table above; its other cells cannot train or diverge.
OTHER_GRID = """
partition = ["iid(clients=4)"]
"data, optimizer.lr, method" = [
  ["digits", 0.1, "fedavg"], ["no-such-data", 0.1, "fedavg"], ["no-such-data", 0.1, "fedprox(mu=1.0)"],
  ["digits", 1e300, "fedprox(mu=1.0)"],
]
"""
OTHER_NUMBERS = """row,column,value,data,optimizer.lr,method
Avg,digits,90,digits,0.1,fedavg
Avg,missing,,no-such-data,0.1,fedavg
Prox,missing,,no-such-data,0.1,fedprox(mu=1.0)
Prox,digits,50,digits,1e+300,fedprox(mu=1.0)
"""
LAUNCHER = """
from pathlib import Path

from kedge.cli import main
from kedge.reproduce import paper
from kedge.config import document

document.SHIPPED = paper.SHIPPED = Path({folder!r})
paper.PUBLISHED = paper.SHIPPED / "published"
if __name__ == "__main__":  # not where a worker process imports this file again
    main()
"""
SITTING = Sitting("2025-03-01T10:00:00Z", "kedge reproduce digits-table1", "CPU", "0.9", "2.11")


def write_tables(folder: Path, rounds: int = 20, epochs: int = 1) -> Path:
    """A folder of two tables, which takes the place of the shipped experiments."""
    (folder / "published").mkdir(parents=True)
    for name, grid, numbers in (
        ("digits-table1", GRID, NUMBERS),
        ("digits-table2", OTHER_GRID, OTHER_NUMBERS),
    ):
        text = EXPERIMENT.format(name=name, grid=grid, rounds=rounds, epochs=epochs)
        (folder / f"{name}.toml").write_text(text)
        (folder / f"published/{name}.csv").write_text(numbers)
    return folder


def ship(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    """Let kedge find the tables of `folder` instead of its own."""
    monkeypatch.setattr(document, "SHIPPED", folder)
    monkeypatch.setattr(paper, "SHIPPED", folder)
    monkeypatch.setattr(paper, "PUBLISHED", folder / "published")
    monkeypatch.delenv("KEDGE_DATA", raising=False)


def started(top: Path, *words: str | Path, **settings: int) -> subprocess.Popen[str]:
    """`kedge reproduce` with these tables in a process of its own, which leads a process group."""
    launcher = top / "launcher.py"
    if not launcher.exists():
        launcher.write_text(LAUNCHER.format(folder=str(write_tables(top / "tables", **settings))))
    (top / "tmp").mkdir(exist_ok=True)
    return subprocess.Popen(
        [sys.executable, str(launcher), "reproduce", *map(str, words)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1", "TMPDIR": str(top / "tmp")},
        start_new_session=True,
    )


def runs(name: str = "digits-table1", seeds: int = 1, scale: Any = "full") -> list[Run]:
    return runs_of(table_of(name, {}), scale, range(seeds), Path())


def table(name: str = "digits-table1") -> Table:
    return table_of(name, {})


def options(**settings: Any) -> TrainOptions:
    given: dict[str, Any] = {"shown": False, "say": lambda message: None}
    return TrainOptions(SITTING, 0.0, **given | settings)


def recorded(record: Record | None) -> Record:
    """The record; it must not be None."""
    assert record is not None
    return record
