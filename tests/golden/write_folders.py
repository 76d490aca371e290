"""Writes the run folders that tests/running/folders/test_golden_folders.py reads and resumes.

    .venv/bin/python tests/golden/write_folders.py tests/golden/VERSION

Run it once for each released version of kedge, with that version, and keep what it wrote: later versions must
read and resume these folders. `ended/` has what the interrupted runs become when the same version resumes
them. Engine and threads are named and everything is float64, so that every machine ends within rounding.
"""

import json
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn

import kedge
from kedge.cli.actions.run import create_folder as create_runs_folder
from kedge.cli.actions.run import run_plan
from kedge.cli.actions.sweep import create_folder as create_sweep_folder
from kedge.cli.actions.sweep import sweep_plan
from kedge.config.document import override, read
from kedge.config.experiment import resolve
from kedge.running.execute import execute, resume
from kedge.running.progress import Interrupted, Observer

SETTINGS: dict[str, Any] = {
    "rounds": 6,
    "data.name": "synthetic",
    "data.samples": 120,
    "data.classes": 3,
    "data.features": [6],
    "model.name": "mlp",
    "model.hidden": [5],
    "partition.clients": 4,
    "partition.alpha": 0.5,
    "participation.per_round": 2,
    "training.epochs": 1,
    "training.batch": 8,
    "checkpoint.every": 2,
    "engine.name": "sequential",
    "engine.precision": "fp64",
    "engine.device": "cpu",
}
INTERRUPTED = (
    "interrupted",
    "switch-before",
    "switch-after",
    "several/scaffold",
    "sweep/method=fedavg/seed1",
)
KEPT = ("history.jsonl", "clients.jsonl", "model.safetensors")


def document(**settings: Any) -> dict[str, Any]:
    """The quickstart made small; keys have __ for a dot."""
    return override(read("quickstart"), SETTINGS | {k.replace("__", "."): v for k, v in settings.items()})


def stop_after(rounds: int) -> Observer:
    """An observer that stops the run at the end of this round."""
    done: list[int] = []

    def stop() -> bool:
        done.append(1)
        return len(done) == rounds

    return Observer(stop=stop)


def interrupt(own: Mapping[str, Any], folder: Path, rounds: int) -> None:
    """Start a run and stop it after some rounds."""
    try:
        execute(resolve(own), folder, stop_after(rounds))
    except Interrupted:
        return
    raise AssertionError(f"{folder} was not interrupted")


def clients() -> list[kedge.Dataset]:
    """Three clients' data, the same on every machine."""
    draw = torch.Generator().manual_seed(0)
    return [
        kedge.Dataset(
            torch.randn(n, 4, dtype=torch.float64, generator=draw), torch.randint(0, 3, (n,), generator=draw)
        )
        for n in (10, 7, 12)
    ]


def network() -> nn.Sequential:
    """A module whose initial weights are the same on every machine."""
    module = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3))
    with torch.no_grad():
        for p in module.parameters():
            p.copy_(torch.linspace(-0.5, 0.5, p.numel()).view_as(p))
    return module


def train(folder: Path, **changed: Any) -> kedge.Result:
    """The call of kedge.train whose folder is kept."""
    settings: dict[str, Any] = {
        "test": clients()[0],
        "method": kedge.feddyn(alpha=0.1),
        "rounds": 4,
        "per_round": 2,
        "epochs": 1,
        "batch": 5,
        "optimizer": kedge.SGD(lr=0.1),
        "precision": "fp64",
        "engine": "sequential",
        "device": "cpu",
        "checkpoint_every": 2,
    }
    return kedge.train(network(), clients(), out=folder, **settings | changed)


def keep(resumed: Path, ended: Path) -> None:
    """Keep how a run ended, and remove the rest."""
    ended.mkdir(parents=True)
    for file in KEPT:
        shutil.copy(resumed / file, ended / file)
    shutil.rmtree(resumed)


def main(top: Path) -> None:
    """Write all folders, and the ends of the interrupted runs."""
    top.mkdir(parents=True)
    execute(resolve(document(method="fedbug(ratio=0.4)+scaffold")), top / "finished")
    interrupt(document(method="fedbug(ratio=0.4)+feddyn(alpha=0.1)"), top / "interrupted", 3)
    switch = document(method="feddyn(alpha=0.1) -> fedavg@0.5")
    interrupt(switch, top / "switch-before", 2)
    interrupt(switch, top / "switch-after", 5)
    plan = run_plan(document(), "fedavg, scaffold", 1)
    create_runs_folder(top / "several", plan, False)
    execute(plan[0].experiment, top / "several" / plan[0].folder)
    interrupt(document(method="scaffold"), top / "several" / plan[1].folder, 4)
    grid = {**document(), "grid": {"method": ["fedavg", "feddyn(alpha=0.1)"]}}
    places = sweep_plan(grid, 2)
    create_sweep_folder(top / "sweep", places, False)
    execute(places[0].experiment, top / "sweep" / places[0].folder)
    interrupt(document(method="fedavg", seed=1), top / "sweep" / places[1].folder, 3)
    train(top / "train")
    resumed = top / "resumed"
    shutil.copytree(top / "train", resumed)
    train(resumed, rounds=6, resume=True)
    keep(resumed, top / "ended/train")
    for name in INTERRUPTED:
        shutil.copytree(top / name, resumed)
        resume(resumed)
        keep(resumed, top / "ended" / name)
    print(json.dumps([str(p.relative_to(top)) for p in sorted(top.rglob("*")) if p.is_file()], indent=1))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
