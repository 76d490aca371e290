"""A few rounds learn on the real datasets, if KEDGE_DATA names a folder with them."""

import os
from pathlib import Path
from typing import Any

import pytest

import kedge
from kedge.config.document import override, read
from kedge.config.experiment import resolve
from kedge.config.federations import federation_of

FOLDER = os.environ.get("KEDGE_DATA")
pytestmark = pytest.mark.slow


def needs(name: str) -> pytest.MarkDecorator:
    there = FOLDER is not None and (Path(FOLDER) / f"{name}.npz").is_file()
    return pytest.mark.skipif(not there, reason=f"KEDGE_DATA names no folder with {name}.npz")


def learned(chance: float, **settings: Any) -> float:
    """The last accuracy; it must be above the first accuracy and three times that of guessing."""
    common = {"optimizer.lr": 0.05, "training.clip": 10.0, "engine.name": "sequential", "engine.threads": 2}
    result = kedge.run("quickstart", progress=False, **{**common, **settings})
    cell = "distributed.global.accuracy"
    first = next(line[cell] for line in result.history if cell in line)
    assert result.accuracy > max(first, 3 * chance), (first, result.accuracy)
    return result.accuracy


@pytest.mark.parametrize(
    ("name", "classes", "model", "epochs"),
    [
        pytest.param("mnist", 10, "shallow-cnn", 1, marks=needs("mnist")),
        pytest.param("cifar10", 10, "standard-cnn", 2, marks=needs("cifar10")),
        pytest.param("cifar100", 100, "standard-cnn", 3, marks=needs("cifar100")),
    ],
)
def test_fedavg_learns_in_a_few_rounds(name: str, classes: int, model: str, epochs: int) -> None:
    settings: dict[str, Any] = {
        "data": name, "model": model, "rounds": 5, "partition": {"name": "iid", "clients": 100},
        "participation.per_round": 10, "training.epochs": epochs, "training.batch": 25, "evaluation.every": 2,
        "evaluation.local_test": 0.0,
    }  # fmt: skip
    learned(1 / classes, **settings)


@needs("uci_har")
def test_uci_har_by_subject_runs_with_thirty_clients() -> None:
    settings: dict[str, Any] = {
        "data": "uci_har", "model": "pamap2-net", "partition": {"name": "natural", "key": "subject"},
        "rounds": 5, "participation.per_round": 10, "training.epochs": 2, "training.batch": 50,
        "evaluation.local": "merged", "evaluation.local_test": 0.25,
    }  # fmt: skip
    assert len(federation_of(resolve(override(read("quickstart"), settings))).clients) == 30
    learned(1 / 6, **settings)


@needs("covid_cxr")
def test_covid_x_rays_of_twenty_clients_run_with_every_cell_of_the_matrix() -> None:
    settings: dict[str, Any] = {
        "data": "covid_cxr", "model": "small-cnn", "rounds": 6, "method": "fedbabu",
        "partition": {"name": "dirichlet-classes", "clients": 20, "alpha": 0.1},
        "participation.per_round": 10, "training.epochs": 2, "training.batch": 20,
        "training.augment": "flip", "evaluation.local_test": 0.25, "evaluation.all": True,
        "engine.name": "sequential", "engine.threads": 2,
    }  # fmt: skip
    result = kedge.run("quickstart", progress=False, **settings)
    last = result.history[-1]
    for cell in ("distributed.global", "all.global", "personal.local"):
        assert 0 < last[f"{cell}.accuracy"] <= 1
    assert last["personal.local.accuracy.tuned"] > 0.6  # two or three classes per client
