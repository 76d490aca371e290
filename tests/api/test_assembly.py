"""kedge.train and a configuration of the same settings are one run, to the last bit."""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import is_dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.quick import every
from torch import nn

import kedge
from kedge.config.document import override
from kedge.config.experiment import Experiment, resolve
from kedge.config.federations import federation_of
from kedge.config.schema import parameters
from kedge.config.train_arguments import ABSENT, KEYS
from kedge.core.schedules import Clock
from kedge.core.tree import Leaves, Tree
from kedge.models.mlp import mlp
from kedge.nn.from_module import seeded
from kedge.running.execute import execute

DATA = {
    "data": {"name": "synthetic", "samples": 90, "classes": 3, "features": [6]},
    "partition": {"name": "dirichlet", "clients": 4, "alpha": 0.7},
    "model": {"name": "mlp", "hidden": [8, 5]},
}
SMALL: dict[str, Any] = {"rounds": 6, "seed": 3, "training": {"batch": 8}}

SWITCH = "proposition1(estimate=clients, smooth=1)"
LATER = [{"method": "fedavg", "at": 3, "schedule": "fix-last"}]

# Arguments of kedge.train, and the tables of a configuration that say the same.
SAME: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "defaults": ({}, {}),
    "method": ({"method": "feddyn(alpha=0.1)"}, {"method": {"name": "feddyn", "alpha": 0.1}}),
    "schedule in the method": (
        {"method": "fedbug(ratio=0.8)+scaffold"},
        {"method": "scaffold", "schedule": {"name": "fedbug", "ratio": 0.8}},
    ),
    "schedule": ({"method": "scaffold", "schedule": "top-down"}, {"method": "top-down+scaffold"}),
    "stages": (
        {"method": "feddyn -> fedavg@0.5"},
        {"method": "feddyn", "then": [{"method": "fedavg", "at": 0.5}]},
    ),
    "three stages": ({"method": "feddyn -> fedbug+fedavg@2 -> fedper@4"},) * 2,
    "switching rule": ({"method": "feddyn -> fedavg@plateau(patience=1)"},) * 2,
    "rule on clients' gradients": (
        {"method": f"feddyn -> fedavg@{SWITCH}"},
        {"method": "feddyn", "then": [{"method": "fedavg", "when": SWITCH}]},
    ),
    "stages as tables": ({"method": "feddyn", "then": LATER},) * 2,
    "participation": (
        {"per_round": 2, "method": "fedavgm"},
        {"participation": {"per_round": 2}, "method": "fedavgm"},
    ),
    "sampling": (
        {"share": 0.5, "sampling": "bernoulli"},
        {"participation": {"share": 0.5, "rule": "bernoulli"}},
    ),
    "training": (
        {"epochs": 2, "clip": 0.5, "drop_last": True, "units": "layer", "statistics": "local"},
        {"training": {"epochs": 2, "clip": 0.5, "drop_last": True, "units": "layer", "statistics": "local"}},
    ),
    "optimizer": (
        {"optimizer": kedge.SGD(lr=0.05, momentum=0.9, weight_decay=1e-3, decay=0.9)},
        {"optimizer": {"name": "sgd", "lr": 0.05, "momentum": 0.9, "weight_decay": 1e-3, "decay": 0.9}},
    ),
    "optimizer as text": ({"optimizer": "adam(lr=0.01)"}, {"optimizer": "adam(lr=0.01)"}),
    "evaluation": (
        {"evaluate_every": 2, "all": True, "tune": kedge.Tune(2, "head"), "tune_every": 4, "headline": "seen",
         "method": "fedper", "per_round": 2},
        {"evaluation": {"every": 2, "all": True, "tune": "head", "tune_epochs": 2, "tune_every": 4,
                        "headline": "seen"}, "method": "fedper", "participation": {"per_round": 2}},
    ),
    "local tests": (
        {"evaluation.local_test": 0.3, "method": "fedbabu"},
        {"evaluation": {"local_test": 0.3}, "method": "fedbabu"},
    ),
    "measures": (
        {"measure": kedge.Measure(drift=True, probe_every=2), "method": "feddyn"},
        {"measure": {"drift": True, "probe_every": 2}, "method": "feddyn"},
    ),
    "engine": (
        {"engine": "stacked", "engine.chunk": 2, "compile": "off", "precision": "fp64"},
        {"engine": {"name": "stacked", "chunk": 2, "compile": "off", "precision": "fp64"}},
    ),
}  # fmt: skip


def configuration(tables: Mapping[str, Any]) -> dict[str, Any]:
    """A document with these tables; engine and device are named, for all else would be measured."""
    engine = {"name": "sequential", "device": "cpu"} | tables.get("engine", {})
    training = SMALL["training"] | tables.get("training", {})
    return {"name": "same", **DATA, **SMALL, **tables, "engine": engine, "training": training}


def call(arguments: Mapping[str, Any], **further: Any) -> kedge.Result:
    """kedge.train with the data and the module of the configuration."""
    held = resolve(configuration({}))
    data = federation_of(held)
    clients = [kedge.Dataset(data.pool.x[own], data.pool.y[own]) for own in data.clients]
    module = seeded(lambda: mlp((6,), 3, (8, 5)), SMALL["seed"])
    given = {"rounds": 6, "seed": 3, "batch": 8, "engine": "sequential", "device": "cpu", "progress": False}
    return kedge.train(module, clients, test=data.test, **{**given, **arguments, **further})


def history_of(result: kedge.Result) -> list[dict[str, Any]]:
    return [{k: v for k, v in line.items() if k != "time"} for line in result.history]


def check_same(one: kedge.Result, other: kedge.Result) -> None:
    """Both runs have the same history and models."""
    assert history_of(one) == history_of(other)
    assert one.method == other.method
    assert one.personal.keys() == other.personal.keys()
    pairs = [(one.model, other.model), *((own, other.personal[c]) for c, own in one.personal.items())]
    for left, right in pairs:
        assert left.keys() == right.keys()
        assert all(torch.equal(v, right[k]) for k, v in left.items())


@pytest.mark.parametrize(("arguments", "tables"), every(2, SAME.values()), ids=SAME)
def test_a_call_and_a_configuration_are_the_same_run(
    arguments: dict[str, Any], tables: dict[str, Any], tmp_path: Path
) -> None:
    called, configured = tmp_path / "call", tmp_path / "configuration"
    check_same(call(arguments, out=called), execute(resolve(configuration(tables)), configured))
    assert saved_numbers(called) == saved_numbers(configured)


def saved_numbers(folder: Path) -> dict[str, Any]:
    """Bytes of all tensors in the folder of a run, and the lines of its history without the times."""
    tensors = {str(f.relative_to(folder)): f.read_bytes() for f in folder.rglob("*.safetensors")}
    assert {"model.safetensors", "average.safetensors"} <= tensors.keys()
    assert any(name.startswith("checkpoint/") for name in tensors)
    lines = [json.loads(line) for line in (folder / "history.jsonl").read_text().splitlines()]
    history = [json.dumps({k: v for k, v in line.items() if k != "time"}) for line in lines]
    assert history
    return {**tensors, "history.jsonl": history, "clients.jsonl": (folder / "clients.jsonl").read_bytes()}


# A value other than the default for every key of a configuration that kedge.train has.
OTHER: dict[str, Any] = {
    "rounds": 7, "seed": 5, "method": "scaffold", "schedule": "fedbug", "optimizer": "adam(lr=0.01)",
    "then": [{"method": "fedprox", "at": 2}],
    "participation.rule": "bernoulli", "participation.per_round": 2, "participation.share": 0.5,
    "training.epochs": 2, "training.batch": 9, "training.clip": 1.5, "training.drop_last": True,
    "training.augment": "flip", "training.statistics": "local", "training.units": "layer",
    "training.on_divergence": "drop",
    "evaluation.every": 3, "evaluation.local_test": 0.2, "evaluation.local": "merged",
    "evaluation.all": True, "evaluation.tune": "head", "evaluation.tune_epochs": 2,
    "evaluation.tune_every": 4, "evaluation.headline": "seen",
    "measure.drift": True, "measure.spread": True, "measure.probe_every": 2, "measure.features_every": 2,
    "measure.components": 3, "measure.correlation": 0.4, "measure.quantile": 0.8, "measure.samples": 50,
    "measure.similarity_samples": 40,
    "privacy.clip": 2.0, "privacy.noise": 1.5, "privacy.delta": 1e-6, "privacy.adaptive": True,
    "privacy.quantile": 0.4, "privacy.clip_rate": 0.1, "privacy.count_noise": 3.0,
    "checkpoint.every": 2,
    "engine.name": "stacked", "engine.device": "cpu", "engine.precision": "fp64", "engine.compile": "off",
    "engine.chunk": 2, "engine.streams": 2, "engine.threads": 2,
    "engine.workers": 3, "engine.worker_engine": "stacked", "engine.address": "10.0.0.5:6379",
}  # fmt: skip


# Keys that the other keys of a table need.
REQUIRED: dict[str, dict[str, Any]] = {
    "measure": {"measure.drift": True},
    "privacy": {"privacy.clip": 1.0, "privacy.noise": 1.0},
}


def all_keys() -> set[str]:
    """The keys of a configuration, without those of the tables that are arguments of kedge.train."""
    found = set()
    for key, (hint, _) in parameters(Experiment).items():
        section = isinstance(hint, type) and is_dataclass(hint)
        found |= {f"{key}.{inner}" for inner in parameters(hint)} if section else {key}
    return found - ABSENT.keys()


def test_the_table_has_every_key_of_a_configuration() -> None:
    assert set(OTHER) == all_keys()


@pytest.mark.parametrize("key", OTHER)
def test_a_key_as_a_setting_or_an_argument_resolves_as_in_a_configuration(key: str) -> None:
    settings = REQUIRED.get(key.partition(".")[0], {}) | {key: OTHER[key]}
    expected = resolve(override({"name": "train"}, settings))
    assert resolved_by_train(settings) == expected
    assert expected != resolve({"name": "train"})
    for argument in (name for name, target in KEYS.items() if target == key):
        assert resolved_by_train({argument: OTHER[key]}) == expected


def resolved_by_train(settings: dict[str, Any]) -> Experiment:
    """The experiment that kedge.train assembles with these arguments."""
    found: list[Experiment] = []

    def stop(experiment: Experiment, objects: object) -> None:
        found.append(experiment)
        raise InterruptedError

    clients = [kedge.Dataset(torch.randn(9, 6), torch.arange(9) % 3)] * 4
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(kedge.api, "assemble", stop)
        patch.setattr(kedge.api, "user_federation", lambda *arguments: None)
        with pytest.raises(InterruptedError):
            kedge.train(nn.Linear(6, 3), clients, progress=False, **settings)
    return found[0]


def low(history: Sequence[Mapping[str, Any]]) -> bool:
    """A rule of one's own: two rounds are enough."""
    return len(history) >= 2


def lower_units(clock: Clock, units: int) -> list[bool]:
    return [unit <= clock.round for unit in range(units)]


FEDDYN, FEDAVG = kedge.feddyn(), kedge.fedavg()
OBJECTS: dict[str, tuple[Any, str]] = {
    "Algorithm": (kedge.fedbug(kedge.feddyn(0.1), 0.8), "fedbug(ratio=0.8)+feddyn(alpha=0.1)"),
    "stages": ([kedge.Stage(FEDDYN, 3), kedge.Stage(FEDAVG, 3)], "feddyn -> fedavg@3"),
    "rule": (
        [kedge.Stage(FEDDYN, 6, until=kedge.plateau(patience=1)), kedge.Stage(FEDAVG, 0)],
        "feddyn -> fedavg@plateau(patience=1)",
    ),
    "own rule": (
        [kedge.Stage(FEDDYN, 6, until=low), kedge.Stage(FEDAVG, 0)],
        "feddyn -> fedavg@2",
    ),
}


@pytest.mark.parametrize(("method", "text"), OBJECTS.values(), ids=OBJECTS)
def test_python_objects_and_the_method_string_are_the_same_run(method: Any, text: str) -> None:
    rounds = {} if isinstance(method, list) else {"rounds": 6}
    check_same(call({"method": method, **rounds}), call({"method": text}))


def test_a_stage_may_train_in_its_own_way() -> None:
    own = kedge.LocalTraining(epochs=2, batch=8, optimizer=kedge.SGD(lr=0.02))
    first, second = kedge.Stage(kedge.fedavg(), 3, own), kedge.Stage(kedge.fedprox(0.1), 3)
    result = call({"method": [first, second]})
    before = call({"method": "fedavg", "rounds": 3, "epochs": 2, "optimizer": kedge.SGD(lr=0.02)})
    assert history_of(result)[:3] == history_of(before)
    assert history_of(result) != history_of(call({"method": [kedge.Stage(kedge.fedavg(), 3), second]}))


@pytest.mark.slow
@pytest.mark.parametrize(
    "method",
    [
        "feddyn -> fedavg@0.5",
        [kedge.Stage(FEDDYN, 4, until=kedge.plateau(patience=1)), kedge.Stage(kedge.scaffold(), 2)],
        kedge.scheduled(kedge.scaffold(), lower_units),
    ],
    ids=["string", "stages", "own schedule"],
)
def test_a_call_with_stages_resumes_to_the_same_bytes(method: Any, tmp_path: Path) -> None:
    whole = call({"method": method}, out=tmp_path / "whole", checkpoint_every=2)
    call({"method": method}, out=tmp_path / "run", checkpoint_every=2)
    for number in sorted((tmp_path / "run/checkpoint").iterdir())[1:]:
        for file in number.iterdir():
            file.unlink()
        number.rmdir()
    (tmp_path / "run/model.safetensors").unlink()
    again = call({"method": method}, out=tmp_path / "run", resume=True, checkpoint_every=2)
    check_same(whole, again)


def test_a_resumed_call_must_have_the_same_stages(tmp_path: Path) -> None:
    call({"method": "feddyn -> fedavg@2"}, out=tmp_path / "run")
    with pytest.raises(kedge.RequestError, match=r"then\.0\.at was 2, and is 4 now"):
        call({"method": "feddyn -> fedavg@4"}, out=tmp_path / "run", resume=True)
    with pytest.raises(
        kedge.RequestError, match=r"then\.0\.method\.name was \"fedavg\", and is \"fedprox\" now"
    ):
        call({"method": "feddyn -> fedprox@2"}, out=tmp_path / "run", resume=True)


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        ({"epoch": 3}, r"epoch: kedge\.train has no such argument\. Did you mean 'epochs'\?"),
        ({"engine.chunks": 3}, r"unknown key engine\.chunks\. Did you mean 'chunk'\?"),
        ({"data.samples": 3}, r"data\.samples: kedge\.train has no such key\. The data are the"),
        ({"protocol": "feddyn"}, "protocol: kedge.train has no such key. A protocol also"),
        ({"method": kedge.fedavg(), "schedule": "fedbug"}, "schedule: only a method string takes this key"),
        ({"method": []}, r"method = \[\]: need a method string, an Algorithm, or a list"),
        ({"method": [kedge.Stage(FEDAVG, 2)], "rounds": 5}, "rounds = 5, but the stages have 2 rounds"),
        ({"method": "moon -> fedavg"}, "these methods train different networks"),
        ({"method": "fedavg -> feddyn@plateau(metric=nothing.accuracy)"}, "history has no such metric"),
        ({"evaluation.local": "merged", "evaluation.local_test": 0.5}, "no common dataset to divide"),
    ],
)  # fmt: skip
def test_wrong_settings_say_why(arguments: dict[str, Any], reason: str) -> None:
    with pytest.raises(kedge.RequestError, match=reason):
        call(arguments)


def test_local_tests_are_passed_or_held_out() -> None:
    tests = [kedge.Dataset(torch.randn(2, 6), torch.arange(2))] * 4
    with pytest.raises(kedge.RequestError, match=r"evaluation\.local_test = 0\.5 and local_tests: give one"):
        call({"evaluation.local_test": 0.5, "local_tests": tests})


def test_what_an_author_of_a_method_needs_is_public() -> None:
    """A method of one's own, written with public names only."""

    class Pull(kedge.Correction):
        name = "pull"

        def gradient(self, grads: Leaves, step: kedge.Step) -> Leaves:
            away = kedge.tree.sub(step.params, step.anchor)
            return {k: g + 0.1 * away[k] for k, g in grads.items()}

        def finish(self, end: kedge.End) -> tuple[Tree, Tree]:
            return end.state, {}

        def server(
            self,
            update: Leaves,
            mean: Tree,
            state: Tree,
            cohort: kedge.Cohort,
        ) -> tuple[Leaves, Tree]:
            return update, state

    clients = [kedge.Dataset(torch.randn(6, 4), torch.arange(6) % 3) for _ in range(2)]
    method = kedge.Algorithm("pull", corrections=(Pull(),))
    stages = [kedge.Stage(method, 1, kedge.LocalTraining(batch=3)), kedge.Stage(kedge.fedavg(), 1)]
    assert kedge.train(nn.Linear(4, 3), clients, method=stages, engine="sequential").method == "fedavg"


def test_the_python_of_the_page_for_authors_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = Path(__file__).parents[2] / "docs/methods/write-a-method.md"
    method, *calls = re.findall(r"```python\n(.*?)```", page.read_text(), flags=re.DOTALL)
    (tmp_path / "my_file.py").write_text(method)
    monkeypatch.chdir(tmp_path)
    clients = [kedge.Dataset(torch.randn(6, 4), torch.arange(6) % 3) for _ in range(2)]
    names: dict[str, Any] = {"module": nn.Linear(4, 3), "clients": clients, "test": clients[0]}
    for snippet in (method, *calls):
        # Few rounds, for speed.
        exec(re.sub(r"rounds=\d0", "rounds=4", snippet), names)
