"""Diagnostics in a run: they are right, on every engine, and the run ends in the same bytes without them."""

import json
import math
import tomllib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.torch
import torch
from tests.contract.algorithms import BUILT_IN
from tests.contract.problem import federation, network
from tests.contract.resuming import LOCAL, assert_resume_is_exact
from tests.quick import every

import kedge
from kedge.algorithms import fedavg, fedbug, feddyn, fedper, scaffold
from kedge.config.diagnostics import shared_units, with_diagnostics
from kedge.config.document import override, read
from kedge.config.experiment import resolve
from kedge.config.task import Task
from kedge.core.algorithm import Algorithm, Stage
from kedge.core.errors import RequestError
from kedge.core.model import Model
from kedge.core.sampling import Participation
from kedge.core.server import broadcast
from kedge.core.tree import only, sub, tree_to
from kedge.data.federation import Federation
from kedge.engines.engine import Engine, Order, drive
from kedge.engines.sequential import Sequential
from kedge.engines.stack.stacked import Stacked
from kedge.measure.drift import client_cosine, cosine, gradient_diversity
from kedge.running.recording.diagnostics import probe
from kedge.running.recording.round_features import local_models
from kedge.running.runner import run

Made = Callable[[Model, Federation], Engine]
EVERYTHING = kedge.Measure(drift=True, probe_every=2, features_every=2, components=3)
NOTHING = kedge.Measure()
NEW = ("drift.", "probe.", "features.")
each_engine = pytest.mark.parametrize("engine", [Sequential, Stacked])


def task_of(algorithm: Algorithm, measure: kedge.Measure, rounds: int = 4, per_round: int | None = 2) -> Task:
    """A task of clients with different sizes and local batch-norm statistics; client 3 has few classes."""
    model = network("batch", "local", of=algorithm)
    stages = with_diagnostics((Stage(algorithm, rounds, LOCAL),), model, measure)
    return Task(stages, model, federation(), Participation(per_round=per_round), measure=measure)


def results_without_diagnostics(folder: Path) -> tuple[bytes, bytes, list[dict[str, Any]], dict[str, Any]]:
    """A run's models, its history without diagnostics and times, its last state without theirs."""
    lines = [json.loads(line) for line in (folder / "history.jsonl").read_text().splitlines()]
    history = [{k: v for k, v in line.items() if not k.startswith(NEW) and k != "time"} for line in lines]
    last = sorted((folder / "checkpoint").iterdir())[-1]
    state = safetensors.torch.load((last / "tensors.safetensors").read_bytes())
    own = {k: v.tolist() for k, v in state.items() if "/updates/" not in k}
    model, average = ((folder / f"{name}.safetensors").read_bytes() for name in ("model", "average"))
    return model, average, history, own


@each_engine
@pytest.mark.parametrize(
    "name",
    every(4, ["fedavg", "feddyn", "scaffold", "fedper", "fedrod", "fedbug+feddyn", "fedtr", "fedavg, all"]),
)
def test_a_run_ends_in_the_same_bytes_with_and_without(name: str, engine: Made, tmp_path: Path) -> None:
    for folder, measure in (("with", EVERYTHING), ("without", NOTHING)):
        (tmp_path / folder).mkdir()
        task = task_of(BUILT_IN[name], measure)
        progress = run(task, engine(task.model, task.federation), tmp_path / folder)
        there = any(k.startswith(("probe.", "features.")) for k in progress.history[-1])
        assert there == (measure is EVERYTHING)
    assert results_without_diagnostics(tmp_path / "with") == results_without_diagnostics(tmp_path / "without")


@each_engine
def test_a_run_with_diagnostics_resumes_to_the_same_numbers(engine: Made, tmp_path: Path) -> None:
    assert_resume_is_exact(task_of(feddyn(0.1), EVERYTHING), engine, tmp_path, after=1)


@pytest.mark.slow
def test_engines_tell_the_same_numbers() -> None:
    """In float64, after rounds that differ in the last bits."""
    for algorithm in (feddyn(0.1), fedbug(scaffold(), 0.8)):
        task = task_of(algorithm, EVERYTHING)
        one = run(task, Sequential(task.model, task.federation)).history
        many = run(task, Stacked(task.model, task.federation)).history
        for left, right in zip(one, many, strict=True):
            names = [k for k in left if k.startswith(NEW)]
            assert names == [k for k in right if k.startswith(NEW)]
            for name in names:
                want = right[name]
                close = want if want is None else pytest.approx(want, rel=1e-6, abs=1e-9)
                assert left[name] == close, name


def separate_updates(task: Task, engine: Engine, round: int, clients: list[int]) -> list[Any]:
    """Updates of the clients in a run's first round, each trained by itself."""
    server = first_server(task)
    order = Order(round, round, 0, server.shared, server.buffers, broadcast(task.stages[0].algorithm, server))
    models = local_models(task, engine, task.stages[0], order, clients, server)
    return [sub(only(params, server.shared), server.shared) for params, _ in models]


def first_server(task: Task) -> Any:
    from kedge.core.server import initial_server

    params, buffers = (tree_to(v, task.federation.dtype) for v in task.model.init(0))
    return initial_server(task.stages[0].algorithm, task.model, params, buffers)


@each_engine
def test_the_history_has_the_drift_of_the_clients_of_the_round(engine: Made) -> None:
    task = task_of(fedavg(), EVERYTHING, rounds=1, per_round=3)
    place = engine(task.model, task.federation)
    line = run(task, place).history[0]
    place.load({})
    updates = separate_updates(task, place, 0, line["clients"])
    assert len(updates) == 3
    assert line["drift.diversity"] == pytest.approx(gradient_diversity(updates), rel=1e-9)
    assert line["drift.cosine.clients"] == pytest.approx(client_cosine(updates), rel=1e-9)
    unit = dict(shared_units(fedavg(), task.model))["unit1"]
    parts = [only(v, unit) for v in updates]
    assert line["drift.diversity.unit1"] == pytest.approx(gradient_diversity(parts), rel=1e-9)
    assert line["drift.cosine.rounds"] is None  # no client has an earlier update


@each_engine
@pytest.mark.parametrize("width", [1, 3, 4])
def test_a_probe_sees_everybody_and_leaves_the_engine_as_it_was(engine: Made, width: int) -> None:
    task = task_of(feddyn(0.1), EVERYTHING, rounds=2)
    place = engine(task.model, task.federation)
    progress = run(task, place)
    before = {k: v for k, v in place.save().items()}
    server, algorithm = progress.server, task.stages[0].algorithm
    order = Order(2, 2, 0, server.shared, server.buffers, broadcast(algorithm, server))
    found = drive(probe(algorithm, place, order, 4, width), place)
    after = place.save()
    assert [*before] == [*after]
    assert all(same(before[k], after[k]) for k in before)
    models = local_models(task, place, task.stages[0], order, range(4), server)
    updates = [sub(only(params, server.shared), server.shared) for params, _ in models]
    assert found["probe.clients"] == 4
    assert found["probe.diversity"] == pytest.approx(gradient_diversity(updates), rel=1e-9)
    assert found["probe.cosine.clients"] == pytest.approx(client_cosine(updates), rel=1e-9)
    last = {int(c): row["slots"]["updates"]["last"] for c, row in after.items()}
    across = [cosine(updates[c], own) or 0.0 for c, own in last.items()]
    assert found["probe.cosine.rounds"] == pytest.approx(sum(across) / len(across), rel=1e-9)


def same(left: Any, right: Any) -> bool:
    if isinstance(left, torch.Tensor):
        return left.equal(right)
    return left.keys() == right.keys() and all(same(left[k], right[k]) for k in left)


def test_a_round_of_everybody_is_its_own_probe() -> None:
    task = task_of(fedavg(), EVERYTHING, rounds=2, per_round=4)
    line = run(task, Sequential(task.model, task.federation)).history[1]
    assert line["probe.clients"] == 4
    for kind in ("diversity", "cosine.clients", "cosine.rounds", "norm.unit2"):
        assert line[f"probe.{kind}"] == line[f"drift.{kind}"] is not None
    assert not any(k.startswith("probe.local") for k in line)


def test_probes_and_looks_come_when_they_are_due() -> None:
    measure = kedge.Measure(drift=True, probe_every=2, features_every=3, components=2, similarity_samples=0)
    task = task_of(fedavg(), measure, rounds=6)
    history = run(task, Sequential(task.model, task.federation)).history
    assert [line["round"] for line in history if "probe.diversity" in line] == [2, 4, 6]
    assert [line["round"] for line in history if "features.clusters" in line] == [3, 6]
    assert not any("cka" in k for line in history for k in line)


def test_the_drift_of_methods_that_remember_one_is_told_where_models_are_measured() -> None:
    task = replace(task_of(scaffold(), EVERYTHING, rounds=3), evaluate_every=2)
    place = Stacked(task.model, task.federation)
    history = run(task, place).history
    assert [line["round"] for line in history if "drift.local.diversity" in line] == [2, 3]
    own = [row["slots"]["control"]["c"] for row in place.save().values()]
    assert history[-1]["drift.local.diversity"] == pytest.approx(gradient_diversity(own), rel=1e-9)


def test_units_that_stay_with_clients_are_not_looked_at() -> None:
    task = task_of(fedper(), EVERYTHING, rounds=2)
    line = run(task, Sequential(task.model, task.federation)).history[-1]
    assert "drift.diversity.unit1" in line
    assert "drift.diversity.unit2" not in line
    assert "features.cka.clients.unit2" in line  # leaves that a client keeps are part of its model


def quick(method: str, **settings: Any) -> list[dict[str, Any]]:
    """A short run of the shipped experiment."""
    plain = {"model.name": "mlp", "engine.name": "sequential", "method": method}
    return kedge.run("quickstart", progress=False, **{**plain, **settings}).history


def test_feddyn_tells_h_its_shift_and_c_and_spread_where_asked_for() -> None:
    spread = {"measure.spread": True, "rounds": 2}
    line = quick("feddyn(alpha=0.1)", **spread)[-1]
    assert line["drift.h"] == pytest.approx(0.1 * line["drift.u"], rel=1e-6)
    assert line["drift.c"] == pytest.approx(line["drift.h"] ** 2, rel=1e-6)
    assert line["drift.spread"] > 0
    first, second = quick("feddyn(alpha=0.1) -> fedavg@1", **spread)
    assert "drift.spread" in first
    assert "drift.u" not in second
    with pytest.raises(RequestError, match=r"measure.spread = true: .* fedavg does not have"):
        quick("fedavg", **spread)


@pytest.mark.slow
def test_memory_of_updates_goes_on_across_a_switch() -> None:
    everybody = {"rounds": 4, "measure.drift": True, "participation.per_round": 20, "partition.clients": 20}
    history = quick("feddyn -> fedavg@2", **everybody)
    assert history[0]["drift.cosine.rounds"] is None
    assert all(-1 <= line["drift.cosine.rounds"] <= 1 for line in history[1:])


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"measure.drift": "yes"}, "measure.drift = 'yes'"),
        ({"measure.drfit": True}, "unknown key measure.drfit. Did you mean 'drift'?"),
        ({"measure.probe_every": 5}, "Set measure.drift = true as well"),
        (
            {"measure.probe_every": -1},
            "measure.probe_every = -1: need a whole number of at least 0; 0 is never",
        ),
        (
            {"measure.features_every": -1},
            "measure.features_every = -1: need a whole number of at least 0; 0 is never",
        ),
        ({"measure.samples": 0}, "measure.samples = 0"),
        ({"measure.components": 0}, "measure.components = 0"),
        ({"measure.correlation": 1.5}, "measure.correlation = 1.5"),
    ],
)
def test_wrong_requests_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(RequestError, match=message.replace(".", r"\.").replace("?", r"\?")):
        resolve(override(read("quickstart"), settings))


def test_the_resolved_config_writes_every_default_out() -> None:
    table = tomllib.loads(resolve(read("quickstart")).toml())["measure"]
    assert table["drift"] is False
    assert (table["components"], table["correlation"], table["quantile"]) == (20, 0.5, 0.9)
    written = resolve(override(read("quickstart"), {"measure.drift": True})).toml()
    assert resolve(tomllib.loads(written)).measure == kedge.Measure(drift=True)


def toy(label: Callable[[int], int], clients: int) -> list[kedge.Dataset]:
    chance = np.random.default_rng(0)
    x = chance.standard_normal((clients, 12, 4)).astype(np.float32)
    return [kedge.Dataset(x[c], np.array([label(i) for i in range(12)])) for c in range(clients)]


@pytest.mark.parametrize("method", ["fedavg", "feddyn", "scaffold"])
@pytest.mark.parametrize("clients", [1, 3])
def test_one_client_and_a_class_nobody_has_give_numbers_or_gaps(method: str, clients: int) -> None:
    data = toy(lambda i: i % 2, clients)  # no client has samples of the last class
    torch.manual_seed(0)
    module = torch.nn.Sequential(torch.nn.Linear(4, 6), torch.nn.ReLU(), torch.nn.Linear(6, 3))
    test = kedge.Dataset(np.ones((9, 4), np.float32), np.arange(9) % 3)  # all the same: constant features
    result = kedge.train(
        module, data, test=test, method=method, rounds=2, engine="sequential", progress=False,
        measure=kedge.Measure(drift=True, probe_every=1, features_every=1),
    )  # fmt: skip
    line = result.history[-1]
    assert not any(isinstance(v, float) and math.isnan(v) for v in line.values())
    assert (line["drift.cosine.clients"] is None) == (clients == 1)
    assert line["probe.clients"] == clients
    assert (line["features.clusters"], line["features.retained.local"]) == (0, 0)
    assert line["features.constant"] > 0
    assert line["features.cka.clients.unit0"] is None
    assert line["features.share"] is None


def test_a_client_that_stands_still_gives_gaps_and_the_run_goes_on() -> None:
    result = kedge.train(
        torch.nn.Linear(4, 3), toy(lambda i: i % 3, 3), rounds=2, engine="sequential", progress=False,
        optimizer=kedge.SGD(lr=1e-300), measure=kedge.Measure(drift=True, probe_every=2),
    )  # fmt: skip
    line = result.history[-1]
    assert line["drift.norm"] == line["probe.norm"] == 0
    assert line["drift.diversity"] is line["drift.cosine.rounds"] is line["probe.diversity"] is None


def test_a_round_in_which_nobody_is_admitted_has_no_drift() -> None:
    data = toy(lambda i: i % 3, 2)
    bad = [kedge.Dataset(torch.full_like(own.x, 1e38), own.y) for own in data]
    result = kedge.train(
        torch.nn.Linear(4, 3), bad, rounds=1, engine="sequential", progress=False, on_divergence="drop",
        measure=kedge.Measure(drift=True, probe_every=1),
    )  # fmt: skip
    line = result.history[-1]
    assert len(line["rejected"]) == 2
    assert not any(k.startswith("drift.") for k in line)
    assert line["probe.clients"] == 0


def test_features_without_test_samples_are_refused_before_anything_trains() -> None:
    with pytest.raises(RequestError, match=r"measure\.features_every = 1: .* this run has none"):
        kedge.train(
            torch.nn.Linear(4, 3), toy(lambda i: i % 3, 2), rounds=1, progress=False,
            measure=kedge.Measure(features_every=1),
        )  # fmt: skip
