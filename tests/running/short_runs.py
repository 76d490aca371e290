"""Short runs, and comparisons of their results."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from safetensors.torch import load_file

from kedge.config.document import override, read
from kedge.config.experiment import Experiment, resolve
from kedge.running.requests import RunRequest
from kedge.running.several_runs import run_all

SMALL: dict[str, Any] = {
    "rounds": 4,
    "model.name": "mlp",
    "training.epochs": 1,
    "partition.clients": 6,
    "participation.per_round": 3,
    "checkpoint.every": 2,
}


def experiment(**settings: Any) -> Experiment:
    """The shortened quickstart; keys have __ for a dot, and a whole table replaces its keys in SMALL."""
    own = {k.replace("__", "."): v for k, v in settings.items()}
    small = {k: v for k, v in SMALL.items() if k.partition(".")[0] not in own}
    return resolve(override(read("quickstart"), small | own))


def members(top: Path, experiments: Sequence[Experiment], start: Any = "new") -> list[RunRequest]:
    return [RunRequest(top / f"run{number}", own, start) for number, own in enumerate(experiments)]


def errors_of(requests: Sequence[RunRequest], **named: Any) -> dict[str, Exception | None]:
    """Train the runs, and return the error of each (None: it ended well) by the name of its folder."""
    return {outcome.request.folder.name: outcome.error for outcome in run_all(requests, shown=False, **named)}


def lines(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "history.jsonl").read_text().splitlines()]


def distance(left: Path, right: Path) -> float:
    """The largest relative difference of the final models of two runs, and of their losses."""
    mine, other = load_file(left / "model.safetensors"), load_file(right / "model.safetensors")
    assert mine.keys() == other.keys()
    largest = max(float(v.abs().max()) for v in other.values())
    models = max(float((v - other[k]).abs().max()) for k, v in mine.items()) / largest
    here, there = lines(left), lines(right)
    assert [line["clients"] for line in here] == [line["clients"] for line in there]
    assert [line["cost"] for line in here] == [line["cost"] for line in there]
    names = ("train.loss", "distributed.global.loss")
    losses = [abs(a[n] / b[n] - 1) for a, b in zip(here, there, strict=True) for n in names]
    return max([models, *map(float, losses)])
