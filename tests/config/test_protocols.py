"""Protocols have the values of the specification, are overridden by the user's values, and run."""

import re
import tomllib
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.cli.command import kedge

from kedge.config.assemble import assemble
from kedge.config.document import override, read
from kedge.config.experiment import Experiment, resolve
from kedge.config.protocols import PROTOCOLS
from kedge.core.errors import RequestError
from kedge.core.sampling import Participation
from kedge.core.schedules import Clock
from kedge.running.folders.folder import read_lines

Document = dict[str, Any]

# The specification's numbers, key by key.
SPEC: dict[str, Document] = {
    "feddyn": {
        "optimizer": {"name": "sgd", "lr": 0.1, "momentum": 0.0, "weight_decay": 1e-3, "decay": 1.0},
        "training.epochs": 5,
        "training.batch": 50,
        "training.clip": 10.0,
        "training.drop_last": False,
        "training.augment": "flip-crop",
        "participation": Participation("bernoulli", share=0.1),
        "partition": {"name": "dirichlet", "clients": 100, "alpha": 0.3, "sigma": 0.0},
        "data": {"name": "cifar10", "path": None, "verify": True, "normalize": "dataset"},
        "method": {"name": "fedavg", "weights": "uniform"},
        "evaluation.all": True,
        "evaluation.local": "split",
        "evaluation.local_test": 0.0,
    },
    "pfllib": {
        "optimizer": {"name": "sgd", "lr": 0.005, "momentum": 0.0, "weight_decay": 0.0, "decay": 1.0},
        "training.epochs": 1,
        "training.batch": 10,
        "training.clip": "off",
        "training.drop_last": True,
        "training.augment": "none",
        "participation": Participation("exact", per_round=10),
        "partition": {
            "name": "dirichlet-classes", "clients": 100, "alpha": 0.1, "cap": True, "minimum": 40,
        },
        "data": {"name": "cifar10", "path": None, "verify": True, "normalize": (0.5, 0.5)},
        "method": {"name": "fedavg", "weights": "size"},
        "evaluation.all": False,
        "evaluation.local": "merged",
        "evaluation.local_test": 0.25,
        "evaluation.tune": "all",
        "evaluation.tune_epochs": 5,
        "evaluation.headline": "all",
    },
    "fedtr": {
        "rounds": 200,
        "optimizer": {"name": "sgd", "lr": 0.01, "momentum": 0.0, "weight_decay": 0.0, "decay": 1.0},
        "training.epochs": 5,
        "training.batch": 50,
        "training.clip": "off",
        "training.drop_last": False,
        "training.augment": "none",
        "participation": Participation("exact", share=1.0),
        "partition": {
            "name": "dirichlet-classes", "clients": 20, "alpha": 0.1, "cap": True, "minimum": 10,
        },
        "data": {"name": "cifar10", "path": None, "verify": True, "normalize": "dataset"},
        "method": {"name": "fedavg", "weights": "size"},
        "evaluation.local": "split",
        "evaluation.local_test": 0.0,
    },
}  # fmt: skip


def feddyn_fedavg(clients: int, share: float, rounds: int, epochs: int, decay: float) -> Document:
    """The values of FedDyn→FedAvg's two settings; the arguments differ between them."""
    return {
        "rounds": rounds,
        "optimizer": {"name": "sgd", "lr": 0.1, "momentum": 0.0, "weight_decay": 1e-3, "decay": decay},
        "training.epochs": epochs,
        "training.batch": 50,
        "training.clip": 10.0,
        "training.drop_last": False,
        "training.augment": "flip-crop",
        "participation": Participation("exact", share=share),
        "partition": {
            "name": "dirichlet-classes", "clients": clients, "alpha": 0.5, "cap": False, "minimum": 10,
        },
        "data": {"name": "cifar10", "path": None, "verify": True, "normalize": "dataset"},
        "method": {"name": "fedavg", "weights": "uniform"},
        "evaluation.all": False,
        "evaluation.local": "split",
        "evaluation.local_test": 0.0,
    }  # fmt: skip


SPEC["feddyn-fedavg-device"] = feddyn_fedavg(clients=100, share=0.1, rounds=1000, epochs=5, decay=0.999)
SPEC["feddyn-fedavg-silo"] = feddyn_fedavg(clients=10, share=1.0, rounds=300, epochs=1, decay=0.99)
each_protocol = pytest.mark.parametrize("name", PROTOCOLS)


def resolved(name: str, settings: Document | None = None, **document: Any) -> Experiment:
    return resolve(override({"name": "x", "protocol": name, "data": "cifar10", **document}, settings or {}))


def value(experiment: Experiment, path: str) -> Any:
    found: Any = experiment
    for key in path.split("."):
        found = getattr(found, key)
    return found


def test_every_protocol_is_specified() -> None:
    ours = {"feddyn", "pfllib", "fedtr", "feddyn-fedavg-device", "feddyn-fedavg-silo"}
    assert set(SPEC) == set(PROTOCOLS) == ours


@each_protocol
def test_a_protocol_resolves_to_the_specification(name: str) -> None:
    experiment = resolved(name)
    assert {path: value(experiment, path) for path in SPEC[name]} == SPEC[name]


@each_protocol
def test_the_resolved_file_has_every_value_and_resolves_to_itself(name: str) -> None:
    text = resolved(name, method="fedprox -> fedavg@0.5").toml()
    written = tomllib.loads(text)
    assert written["protocol"] == name
    assert written["optimizer"]["lr"] == SPEC[name]["optimizer"]["lr"]
    assert written["then"][0]["method"]["weights"] == SPEC[name]["method"]["weights"]
    assert resolve(written).toml() == text
    del written["protocol"]  # it is for the record: nothing is left to it
    again = resolve(written)
    assert again.toml() == text.replace(f'protocol = "{name}"\n', "")


@each_protocol
def test_one_key_gives_way_and_the_others_stay(name: str) -> None:
    plain = resolved(name)
    for changed in (
        resolved(name, {"training.batch": 7, "partition.alpha": 0.9, "optimizer.lr": 0.7}),
        resolved(name, training={"batch": 7}, partition={"alpha": 0.9}, optimizer={"lr": 0.7}),
    ):
        assert (changed.training.batch, changed.training.epochs) == (7, plain.training.epochs)
        assert changed.training.drop_last == plain.training.drop_last
        assert changed.partition == {**plain.partition, "alpha": 0.9}
        assert changed.optimizer == {**plain.optimizer, "lr": 0.7}
        assert changed.evaluation == plain.evaluation


@each_protocol
def test_another_factory_brings_its_own_arguments(name: str) -> None:
    for changed in (
        resolved(name, partition={"name": "shards", "clients": 9}, optimizer="adam"),
        resolved(name, {"partition": "shards(clients=9)", "optimizer": "adam"}),
        resolved(name, {"partition.name": "shards", "partition.clients": 9, "optimizer.name": "adam"}),
    ):
        assert changed.partition == {"name": "shards", "clients": 9, "per_client": 2}
        assert changed.optimizer == resolve({"name": "x", "optimizer": "adam"}).optimizer
        assert changed.training == resolved(name).training


def test_a_table_set_by_shorthand_takes_further_settings() -> None:
    changed = resolved("feddyn", {"partition": "shards(clients=9)", "partition.per_client": 3})
    assert changed.partition == {"name": "shards", "clients": 9, "per_client": 3}


def test_the_whole_of_a_protocol_gives_way_to_an_experiment_that_says_everything() -> None:
    text = resolved("pfllib").toml()
    assert resolve({**tomllib.loads(text), "protocol": "feddyn"}).toml() == text.replace("pfllib", "feddyn")


@pytest.mark.parametrize(
    ("name", "given", "expected"),
    [
        ("feddyn", {"participation.per_round": 10}, Participation("bernoulli", per_round=10)),
        ("feddyn", {"participation.share": 0.01}, Participation("bernoulli", share=0.01)),
        ("feddyn", {"participation.rule": "exact"}, Participation("exact", share=0.1)),
        ("pfllib", {"participation.share": 1.0}, Participation("exact", share=1.0)),
        ("fedtr", {"participation.per_round": 3}, Participation("exact", per_round=3)),
        ("feddyn-fedavg-device", {"participation.share": 1.0}, Participation("exact", share=1.0)),
        ("feddyn-fedavg-silo", {"participation.per_round": 3}, Participation("exact", per_round=3)),
    ],
)
def test_a_number_of_clients_replaces_a_share_and_a_share_a_number(
    name: str, given: Document, expected: Participation
) -> None:
    changed = resolved(name, given)
    assert changed.participation == expected
    assert resolve(tomllib.loads(changed.toml())).toml() == changed.toml()


def test_clipping_can_be_switched_off_and_stays_off_when_read_again() -> None:
    changed = resolved("feddyn", {"training.clip": "off", "data": "digits"})
    again = resolve(tomllib.loads(changed.toml()))
    assert again.toml() == changed.toml()
    assert assemble(again).stages[0].local.clip is None
    assert assemble(resolved("feddyn", {"data": "digits"})).stages[0].local.clip == 10
    for key in ("training.clip", "participation.share"):
        with pytest.raises(RequestError, match=rf"{key} = None: the protocol 'feddyn' has .*Give a value"):
            resolved("feddyn", {key: None})


@pytest.mark.parametrize(
    ("method", "weights"),
    [
        ("fedprox", "uniform"),
        ("fedbug + fedbabu", "uniform"),
        ("fedavg(weights=size)", "size"),  # the user's value
        ("feddyn", None),  # it has no such argument
        ("scaffold", None),
    ],
)
def test_weights_are_the_protocol_s_where_a_method_has_them_and_nobody_says_otherwise(
    method: str, weights: str | None
) -> None:
    assert resolved("feddyn", method=method).method.get("weights") == weights
    assert resolved("feddyn", {"method": method}).method.get("weights") == weights


def test_a_method_of_one_s_own_gets_the_weights_it_asks_for(tmp_path: Path) -> None:
    file = tmp_path / "own.py"
    file.write_text(
        "from kedge import fedavg\n"
        "from kedge.core.algorithm import Algorithm\n"
        "def mine(weights: str = 'size') -> Algorithm:\n    return fedavg(weights)\n"
        "def plain() -> Algorithm:\n    return fedavg()\n"
    )
    assert resolved("feddyn", method=f"{file}:mine").method["weights"] == "uniform"
    assert "weights" not in resolved("feddyn", method=f"{file}:plain").method


def test_fedtr_s_fedprox_has_its_coefficient() -> None:
    assert resolved("fedtr", method="fedprox").method == {"name": "fedprox", "mu": 0.01, "weights": "size"}
    assert resolved("fedtr", method="fedprox(mu=0.3)").method["mu"] == 0.3
    assert resolved("fedtr", method="fedavg -> fedprox@0.5").then[0]["method"]["mu"] == 0.01
    assert resolved("feddyn", method="fedprox").method["mu"] == 1e-4


@pytest.mark.parametrize(
    ("method", "epochs"),
    [
        ("fedrep", 2),
        ("anti(thaw=[0, 5, 9]) + fedrep(head_share=0.25)", 2),
        ({"name": "fedrep"}, 2),
        ("fedper", 1),
        ("fedrep -> fix-last + fedrep@0.5", 2),
        ("fedavg -> fedrep@0.5", 1),  # its stages share [training]
        ("fedrep -> fedavg@0.5", 1),
    ],
)
def test_pfllib_s_fedrep_trains_two_epochs_where_every_stage_is_fedrep(method: Any, epochs: int) -> None:
    found = resolved("pfllib", method=method)
    assert found.training == replace(resolved("pfllib").training, epochs=epochs)
    assert resolved("pfllib", {"method": method}).training.epochs == epochs
    assert resolved("pfllib", {"training.batch": 7}, method=method).training.epochs == epochs
    assert resolved("pfllib", {"training.epochs": 6}, method=method).training.epochs == 6
    assert resolve(tomllib.loads(found.toml())).toml() == found.toml()


def test_fedrep_s_epochs_are_those_of_one_protocol() -> None:
    assert resolved("feddyn", method="fedrep").training.epochs == 5
    assert resolve({"name": "x", "method": "fedrep"}).training.epochs == 1


def test_pfllib_s_fedrep_trains_the_head_for_one_epoch_and_then_the_base_for_one() -> None:
    experiment = resolved("pfllib", method="fedrep", data=BEDS["pfllib"])
    (stage,) = assemble(experiment).stages
    for batches in (1, 3, 7):  # of an epoch
        steps = experiment.training.epochs * batches
        masks = [stage.algorithm.schedule(Clock(0, 0, step, steps), 3) for step in range(steps)]
        assert masks == [(False, False, True)] * batches + [(True, True, False)] * batches


@pytest.mark.parametrize(
    ("name", "data", "augment", "local"),
    [
        ("feddyn", "cifar100", "flip-crop", "split"),
        ("feddyn", "tiny-imagenet", "flip", "split"),
        ("feddyn", "digits", "none", "split"),
        ("pfllib", "cifar100", "none", "merged"),
        ("pfllib", "tiny-imagenet", "none", "split"),
    ],
)
def test_what_depends_on_the_dataset(name: str, data: str, augment: str, local: str) -> None:
    found = resolved(name, data=data)
    assert (found.training.augment, found.evaluation.local) == (augment, local)
    assert found.evaluation.local_test == resolved(name).evaluation.local_test
    other = resolved(name, {"training.augment": "flip", "evaluation.local": "matched"}, data=data)
    assert (other.training.augment, other.evaluation.local) == ("flip", "matched")


@pytest.mark.parametrize(
    ("name", "data", "epochs", "augment", "concentration"),
    [
        ("feddyn-fedavg-device", "cifar10", 5, "flip-crop", 0.5),
        ("feddyn-fedavg-device", "cifar100", 5, "flip-crop", 0.1),
        ("feddyn-fedavg-device", "tiny-imagenet", 5, "flip", 0.1),
        ("feddyn-fedavg-silo", "cifar10", 1, "flip-crop", 0.5),
        ("feddyn-fedavg-silo", "cifar100", 5, "flip-crop", 0.1),
        ("feddyn-fedavg-silo", "tiny-imagenet", 1, "flip", 0.1),
    ],
)
def test_feddyn_fedavg_s_settings_of_each_dataset(
    name: str, data: str, epochs: int, augment: str, concentration: float
) -> None:
    found = resolved(name, data=data, method="feddyn -> feddyn-no-h@0.75")
    assert (found.training.epochs, found.training.augment) == (epochs, augment)
    assert found.partition["alpha"] == concentration
    strength = {"feddyn-fedavg-device": 0.1, "feddyn-fedavg-silo": 0.01}[name]
    assert [method["alpha"] for method, *_ in found.stages] == [strength, strength]
    assert resolved(name, data=data, method="feddyn(alpha=1.0)").method["alpha"] == 1


@pytest.mark.parametrize(
    ("name", "last_rate", "switch", "clients"),
    [("feddyn-fedavg-device", 0.0368, 750, 10), ("feddyn-fedavg-silo", 0.00495, 225, 10)],
)
def test_feddyn_fedavg_s_last_learning_rate_switch_and_clients_a_round(
    name: str, last_rate: float, switch: int, clients: int
) -> None:
    found = resolved(name, data=BEDS[name], method="feddyn -> fedavg@0.75")
    rate = assemble(found).stages[0].local.optimizer.rate(found.rounds - 1)
    assert rate == pytest.approx(last_rate, rel=2e-3)
    assert found.starts == [switch]
    drawn = found.participation.sample(found.partition["clients"], seed=0, round=0)
    assert len(set(drawn)) == clients


@pytest.mark.parametrize("name", ["feddyn-fedavg-device", "feddyn-fedavg-silo"])
def test_feddyn_fedavg_s_averages_are_uniform_in_every_stage(name: str) -> None:
    second = ["fedavg", "fedntd", "moon(projection=0)", "feddyn-no-reg", "feddyn-no-h", "scaffold"]
    weights = [resolved(name, method=f"feddyn -> {method}@0.75").then[0]["method"] for method in second]
    assert [method.get("weights") for method in weights] == ["uniform"] * 3 + [None] * 3


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (
            "fedyn",
            r"protocol = 'fedyn': no such name\. Did you mean 'feddyn'\? Allowed: feddyn, pfllib, fedtr",
        ),
        (3, r"protocol = 3: need a name: feddyn, pfllib, fedtr"),
        (["feddyn"], r"protocol = \['feddyn'\]: need a name"),
    ],
)
def test_an_unknown_protocol_is_refused(given: Any, message: str) -> None:
    with pytest.raises(RequestError, match=message):
        resolve({"name": "x", "protocol": given})


def test_normalizing_is_a_key_of_every_dataset() -> None:
    federation = assemble(resolve({"name": "x", "data": "digits(normalize=[0.5, 0.25])"})).federation
    assert (federation.mean, federation.std, federation.scale) == ((0.5,), (0.25,), 1 / 16)
    own = assemble(resolve({"name": "x", "data": "digits"})).federation
    assert own.mean != (0.5,)
    black = federation.prepare(federation.pool.x[:1] * 0)
    assert (black == -2).all()  # (0 − 0.5) / 0.25
    with pytest.raises(RequestError, match=r"unknown key data.normalise. Did you mean 'normalize'\?"):
        resolve({"name": "x", "data": "digits(normalise=[0.5, 0.5])"})
    with pytest.raises(RequestError, match=r"data.normalize = \[0.5, 0.0\]: need .* deviation > 0"):
        assemble(resolve({"name": "x", "data": "digits(normalize=[0.5, 0])"}))


BEDS = {  # small data on which each protocol runs as it is
    "feddyn": "digits",
    "pfllib": "synthetic(samples=12000, classes=100, features=8)",
    "fedtr": "digits",
    "feddyn-fedavg-device": "synthetic(samples=12000, classes=100, features=8)",
    "feddyn-fedavg-silo": "digits",
}


@each_protocol
def test_a_protocol_runs_as_it_is(name: str, tmp_path: Path) -> None:
    file = tmp_path / "mine.toml"
    file.write_text(f'protocol = "{name}"\ndata = "{BEDS[name]}"\nmodel = "mlp(hidden=[8])"\n')
    words = ("--set", "rounds=1", "--engine", "sequential", "--out", tmp_path / "run")
    answer = kedge("run", file, *words)
    assert answer.code == 0, answer
    line = read_lines(tmp_path / "run/history.jsonl")[-1]
    config = tomllib.loads((tmp_path / "run/config.toml").read_text())
    assert config["protocol"] == name
    assert config["optimizer"] == SPEC[name]["optimizer"]
    cells = {k for k in line if k.endswith(("accuracy", "accuracy.tuned"))}
    if name == "feddyn":
        assert {"all.global.accuracy", "average.global.accuracy"} <= cells
    if name == "pfllib":
        assert len(line["clients"]) == 10
        assert line["distributed.global.accuracy"] == line["distributed.local.accuracy"]
        assert "personal.local.accuracy.tuned" in cells
    if name == "fedtr":
        assert line["clients"] == list(range(20))
    if name == "feddyn-fedavg-device":
        assert len(line["clients"]) == 10
    if name == "feddyn-fedavg-silo":
        assert line["clients"] == list(range(10))


@pytest.mark.parametrize(
    ("experiment", "protocol"),
    [
        ("fedbug-cifar10", "feddyn"),
        ("layer-expansion-cifar100", "pfllib"),
        ("fedtr-organs", "fedtr"),
    ],
)
def test_the_shipped_experiments_state_only_what_differs(experiment: str, protocol: str) -> None:
    document = read(experiment)
    found = resolve(document)
    assert found.protocol == protocol
    plain = resolve({"name": experiment, "protocol": protocol, "data": document["data"]})
    for key, table in PROTOCOLS[protocol].tables.items():
        said = document.get(key, {})
        if isinstance(table, dict) and isinstance(said, dict):
            assert all(table.get(inner) != own for inner, own in said.items())
            assert said or value(found, key) == value(plain, key)


def test_the_page_s_example_resolves() -> None:
    page = (Path(__file__).parents[2] / "docs/protocols.md").read_text()
    (example,) = re.findall(r"```toml\n(.*?)```", page, flags=re.DOTALL)
    found = resolve(tomllib.loads(example))
    assert found.partition == {"name": "dirichlet", "clients": 100, "alpha": 0.6, "sigma": 0.0}
    assert found.label == "fedbug+fedavg"


def test_list_names_the_protocols() -> None:
    rows = {row["name"]: row for row in kedge("list", "protocols", "--json").json()}
    assert set(rows) == set(PROTOCOLS)
    assert rows["pfllib"]["arguments"]["optimizer.lr"] == 0.005
    assert rows["fedtr"]["arguments"]["rounds"] == 200
    assert rows["feddyn"]["arguments"]["method.weights"] == "uniform"
    assert rows["feddyn-fedavg-device"]["arguments"]["optimizer.decay"] == 0.999
    assert rows["feddyn-fedavg-silo"]["arguments"]["participation.share"] == 1.0
    assert "feddyn" in kedge("list", "protocols").out
