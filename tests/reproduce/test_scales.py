"""Runs with fewer rounds: a tenth of them, and two on synthetic data."""

from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch

import kedge
from kedge.config.experiment import Experiment, resolve
from kedge.config.grid import Cell
from kedge.core.errors import RequestError
from kedge.data.datasets import load
from kedge.reproduce.paper import Entry, cell_of, names
from kedge.reproduce.plan import at_scale, table_of
from kedge.reproduce.scales import SHAPES, Scale, small, smoke, with_rounds, write_synthetic

# Shape of a sample as a network receives it, and number of classes, from the datasets' own pages.
REAL = {
    "mnist": ((1, 28, 28), 10),
    "cifar10": ((3, 32, 32), 10),
    "cifar100": ((3, 32, 32), 100),
    "tiny-imagenet": ((3, 64, 64), 200),
    "organamnist": ((1, 28, 28), 11),
    "organcmnist": ((1, 28, 28), 11),
    "organsmnist": ((1, 28, 28), 11),
    "covidx": ((1, 64, 64), 3),
    "pamap2": ((27, 1, 200), 10),
}


def an_experiment(**keys: Any) -> Experiment:
    return resolve({"name": "mine", "rounds": 300, "data": "digits"} | keys)


@cache
def every_entry() -> list[tuple[Entry, Cell]]:
    """All printed numbers of all shipped tables, each with its cell."""
    tables = [table_of(name, {}) for name in names()]
    return [(entry, cell_of(entry, one.cells)) for one in tables for entry in one.paper.entries]


def shortened(scale: Scale) -> Iterator[tuple[Entry, Cell, Experiment]]:
    short = {id(cell): at_scale(cell, scale, Path("made")) for _, cell in every_entry()}
    return ((entry, cell, short[id(cell)]) for entry, cell in every_entry())


@pytest.mark.parametrize(("rounds", "expected"), [(300, 30), (1000, 100), (101, 11), (10, 1), (9, 1), (1, 1)])
def test_small_is_a_tenth_of_the_rounds_rounded_up(rounds: int, expected: int) -> None:
    assert small(an_experiment(rounds=rounds)).rounds == expected


def test_evaluations_and_measurements_shrink_with_the_rounds() -> None:
    short = small(
        an_experiment(
            evaluation={"every": 20, "tune_every": 100},
            measure={"drift": True, "probe_every": 50, "features_every": 100, "similarity_samples": 0},
        )
    )
    assert (short.evaluation.every, short.evaluation.tune_every) == (2, 10)
    assert (short.measure.probe_every, short.measure.features_every) == (5, 10)


def test_what_happens_every_few_rounds_happens_every_round_and_what_never_happens_never() -> None:
    short = small(an_experiment(evaluation={"every": 3}))
    assert (short.evaluation.every, short.evaluation.tune_every) == (1, 0)
    assert (short.measure.probe_every, short.measure.features_every) == (0, 0)


def test_clients_are_fine_tuned_in_rounds_that_are_evaluated() -> None:
    short = with_rounds(an_experiment(evaluation={"every": 30, "tune_every": 100}), 30)
    assert (short.evaluation.every, short.evaluation.tune_every) == (3, 12)


def test_layers_thaw_after_a_tenth_of_the_rounds_in_every_stage() -> None:
    short = small(
        an_experiment(method="vanilla(thaw=[0, 50, 100]) + fedavg -> anti(thaw=[0, 100, 200]) + fedavg@200")
    )
    assert short.schedule["thaw"] == (0, 5, 10)
    assert short.then[0]["schedule"]["thaw"] == (0, 10, 20)
    assert (short.schedule["name"], short.then[0]["schedule"]["name"]) == ("vanilla", "anti")


def test_a_schedule_by_shares_of_a_round_does_not_change() -> None:
    long = an_experiment(method="fedbug(ratio=0.4) + fedavg")
    assert small(long).schedule == long.schedule


@pytest.mark.parametrize(
    ("method", "rounds", "starts"),
    [
        ("feddyn -> fedavg@0.75", 30, [22]),
        ("feddyn -> fedavg@150", 30, [15]),
        ("feddyn -> fedavg@1", 30, [1]),
        ("feddyn -> fedavg@299", 30, [29]),
        ("feddyn -> fedavg@0.99 ", 2, [1]),
        ("feddyn -> fedavg@0.01", 2, [1]),
        ("feddyn -> fedavg@10 -> scaffold@11", 30, [1, 2]),
        ("feddyn -> fedavg@298 -> scaffold@299", 30, [28, 29]),
        ("feddyn -> fedavg@0.5 -> scaffold@0.505", 30, [15, 16]),
        ("feddyn -> fedavg@plateau(patience=5)", 30, [30]),
    ],
)
def test_stages_start_earlier_one_after_the_other_and_before_the_end(
    method: str, rounds: int, starts: list[int]
) -> None:
    short = with_rounds(an_experiment(method=method), rounds)
    assert short.starts == starts
    assert [row["method"] for row in short.then] == [
        row["method"] for row in an_experiment(method=method).then
    ]


def test_only_what_counts_rounds_changes_at_scale_small() -> None:
    long = an_experiment(method="fedbug(ratio=0.4) + feddyn(alpha=0.1)", training={"epochs": 7}, seed=3)
    short = small(long)
    assert short != long
    expected = replace(long, rounds=30, checkpoint=short.checkpoint, evaluation=short.evaluation)
    assert short == expected


@pytest.mark.slow
def test_shortened_runs_of_every_table_save_no_checkpoints() -> None:
    scales: tuple[Scale, ...] = ("full", "small", "smoke")
    for scale in scales:
        assert {short.checkpoint.every for _, _, short in shortened(scale)} == {0}


def test_every_number_of_every_table_is_measured_in_a_small_run() -> None:
    """It is evaluated, tuned and measured up to its last round, as the whole run."""
    for entry, cell, short in shortened("small"):
        assert short.rounds == -(-cell.experiment.rounds // 10), cell.name
        assert short.rounds % short.evaluation.every == 0, cell.name
        if entry.metric.endswith(".tuned"):
            assert 0 < short.evaluation.tune_every <= short.rounds, cell.name
            assert short.evaluation.tune_every % short.evaluation.every == 0, cell.name
            assert short.rounds % short.evaluation.tune_every == 0, cell.name
        if entry.metric.startswith("features."):
            assert 0 < short.measure.features_every <= short.rounds, cell.name
        assert all(0 < start < short.rounds for start in short.starts), cell.name


def test_every_cell_of_every_table_has_two_rounds_of_the_same_training_at_scale_smoke() -> None:
    for _, cell, short in shortened("smoke"):
        long = cell.experiment
        assert short.rounds == 2
        assert short.data["path"] == "made"
        for key in ("name", "model", "method", "optimizer", "seed"):
            assert getattr(short, key) == getattr(long, key), cell.name
        assert short.schedule["name"] == long.schedule["name"], cell.name
        assert [row["method"] for row in short.then] == [row["method"] for row in long.then], cell.name
        assert short.starts == [1 for _ in long.then], cell.name


def test_every_table_s_data_can_be_made() -> None:
    assert {cell.experiment.data["name"] for _, cell in every_entry()} <= set(SHAPES)
    assert set(SHAPES) == set(REAL)


@pytest.mark.parametrize("name", REAL)
def test_made_data_have_the_dataset_s_shape_and_classes(name: str, tmp_path: Path) -> None:
    write_synthetic(tmp_path, name)
    source = load(name, path=tmp_path)
    shape, classes = REAL[name]
    assert source.name == name
    assert source.train.x.shape[1:] == source.test.x.shape[1:] == shape
    assert source.classes == classes
    assert source.train.x.dtype == (torch.float32 if name == "pamap2" else torch.uint8)
    assert len(source.train) >= len(source.test) > 0
    assert len(source.train) < 1000


def test_made_data_are_the_same_each_time(tmp_path: Path) -> None:
    parts = []
    for folder in (tmp_path / "a", tmp_path / "b"):
        folder.mkdir()
        write_synthetic(folder, "mnist")
        parts.append(load("mnist", path=folder).train)
    assert torch.equal(parts[0].x, parts[1].x)
    assert torch.equal(parts[0].y, parts[1].y)


def test_data_that_cannot_be_made_are_refused_with_those_that_can(tmp_path: Path) -> None:
    with pytest.raises(RequestError, match=r"no synthetic data for imagenet: available for mnist, cifar10"):
        write_synthetic(tmp_path, "imagenet")
    assert not list(tmp_path.iterdir())


def test_a_smoke_run_trains_on_made_data(tmp_path: Path) -> None:
    write_synthetic(tmp_path, "mnist")
    long = an_experiment(
        data="mnist", model="mlp", method="fedbug(ratio=0.5) + fedavg -> feddyn@150",
        partition="dirichlet(clients=100, alpha=0.1)", evaluation={"every": 50},
    )  # fmt: skip
    file = tmp_path / "smoke.toml"
    file.write_text(smoke(long, tmp_path).toml())
    result = kedge.run(file, progress=False)
    assert [line["method"] for line in result.history] == ["fedbug+fedavg", "feddyn"]
    assert 0 <= result.accuracy <= 1
