"""Training protocols of published code: default values for the tables of an experiment.

    protocol = "feddyn"

feddyn                A: the FedDyn code family (FedDyn, FedBug, FedDC)
pfllib                B: PFLlib (sequential layer expansion)
fedtr                 C: FedTR
feddyn-fedavg-device  D: FedDyn→FedAvg, cross-device
feddyn-fedavg-silo    D: FedDyn→FedAvg, cross-silo

Values of the experiment replace those of the protocol. If the experiment names another factory (another
partition or optimizer), the protocol's arguments for that table do not apply. docs/protocols.md lists which
values the papers state and which are inferred or assumed.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from kedge.config.factories import factory_of
from kedge.config.schema import named_entry, parameters
from kedge.core.errors import RequestError

Table = Mapping[str, Any]
EITHER = {"per_round", "share"}  # keys of [participation] that exclude each other
REGULARIZED_START = "Rethinking Regularization in Federated Learning"  # anonymous, under review


@dataclass(frozen=True)
class Protocol:
    """A protocol: its values, and further values for single methods and datasets."""

    summary: str
    paper: str
    tables: Mapping[str, Any]
    weights: str  # of clients in the average, for all methods with the argument `weights`
    methods: Mapping[str, Table] = field(default_factory=dict)  # arguments of single methods
    training: Mapping[str, Table] = field(default_factory=dict)  # [training] of single methods
    datasets: Mapping[str, Mapping[str, Table]] = field(default_factory=dict)  # tables for single datasets


PROTOCOLS: dict[str, Protocol] = {
    "feddyn": Protocol(
        "SGD 0.1 with weight decay, clip 10, batch 50; each of 100 equal clients joins with chance 0.1.",
        "Acar et al., 2021; Kao et al., 2023",
        {
            "data": {"normalize": "dataset"},
            "partition": {"name": "dirichlet", "clients": 100, "alpha": 0.3, "sigma": 0.0},
            "participation": {"rule": "bernoulli", "share": 0.1},
            "optimizer": {"name": "sgd", "lr": 0.1, "momentum": 0.0, "weight_decay": 1e-3, "decay": 1.0},
            "training": {"epochs": 5, "batch": 50, "clip": 10.0, "drop_last": False},
            "evaluation": {"all": True},
        },
        weights="uniform",
        methods={"feddecorr": {"beta": 0.01}},
        datasets={
            "cifar10": {"training": {"augment": "flip-crop"}},
            "cifar100": {"training": {"augment": "flip-crop"}},
            "tiny-imagenet": {"training": {"augment": "flip"}},
        },
    ),
    "pfllib": Protocol(
        "SGD 0.005, batch 10, 1 epoch, 10 of 100 clients; local tests of a quarter, train and test merged.",
        "Zhang et al., 2025; Jang and Choi, 2024",
        {
            "data": {"normalize": (0.5, 0.5)},
            "partition": {
                "name": "dirichlet-classes",
                "clients": 100,
                "alpha": 0.1,
                "cap": True,
                "minimum": 40,  # batch / (1 − 0.75); PFLlib takes N / (2·clients) where that is less
            },
            "participation": {"rule": "exact", "per_round": 10},
            "optimizer": {"name": "sgd", "lr": 0.005, "momentum": 0.0, "weight_decay": 0.0, "decay": 1.0},
            "training": {"epochs": 1, "batch": 10, "clip": "off", "drop_last": True, "augment": "none"},
            "evaluation": {
                "local": "merged",
                "local_test": 0.25,
                "tune": "all",
                "tune_epochs": 5,
                "headline": "all",
            },
        },
        weights="size",
        training={"fedrep": {"epochs": 2}},  # PFLlib: one epoch of the head, then one of the base
        datasets={"tiny-imagenet": {"evaluation": {"local": "split"}}},  # its training images only
    ),
    "fedtr": Protocol(
        "SGD 0.01, batch 50, 5 epochs, all of 20 clients of few classes in each of 200 rounds.",
        "Chen et al.",
        {
            "rounds": 200,
            "partition": {
                "name": "dirichlet-classes",
                "clients": 20,
                "alpha": 0.1,
                "cap": True,
                "minimum": 10,
            },
            "participation": {"rule": "exact", "share": 1.0},
            "optimizer": {"name": "sgd", "lr": 0.01, "momentum": 0.0, "weight_decay": 0.0, "decay": 1.0},
            "training": {"epochs": 5, "batch": 50, "clip": "off", "drop_last": False},
        },
        weights="size",
        methods={"fedprox": {"mu": 0.01}},
    ),
    "feddyn-fedavg-device": Protocol(
        "SGD 0.1 with decay 0.999, clip 10, batch 50, 5 epochs, 10 of 100 clients in each of 1000 rounds.",
        REGULARIZED_START,
        {
            "rounds": 1000,
            "data": {"normalize": "dataset"},
            "partition": {
                "name": "dirichlet-classes",
                "clients": 100,
                "alpha": 0.1,
                "cap": False,
                "minimum": 10,
            },
            "participation": {"rule": "exact", "share": 0.1},
            "optimizer": {"name": "sgd", "lr": 0.1, "momentum": 0.0, "weight_decay": 1e-3, "decay": 0.999},
            "training": {"epochs": 5, "batch": 50, "clip": 10.0, "drop_last": False},
        },
        weights="uniform",
        methods={"feddyn": {"alpha": 0.1}, "feddyn-no-h": {"alpha": 0.1}},
        datasets={
            "cifar10": {"partition": {"alpha": 0.5}, "training": {"augment": "flip-crop"}},
            "cifar100": {"training": {"augment": "flip-crop"}},
            "tiny-imagenet": {"training": {"augment": "flip"}},
        },
    ),
    "feddyn-fedavg-silo": Protocol(
        "SGD 0.1 with decay 0.99, clip 10, batch 50, 1 or 5 epochs, all of 10 clients in each of 300 rounds.",
        REGULARIZED_START,
        {
            "rounds": 300,
            "data": {"normalize": "dataset"},
            "partition": {
                "name": "dirichlet-classes",
                "clients": 10,
                "alpha": 0.1,
                "cap": False,
                "minimum": 10,
            },
            "participation": {"rule": "exact", "share": 1.0},
            "optimizer": {"name": "sgd", "lr": 0.1, "momentum": 0.0, "weight_decay": 1e-3, "decay": 0.99},
            "training": {"epochs": 5, "batch": 50, "clip": 10.0, "drop_last": False},
        },
        weights="uniform",
        methods={"feddyn": {"alpha": 0.01}, "feddyn-no-h": {"alpha": 0.01}},
        datasets={
            "cifar10": {"partition": {"alpha": 0.5}, "training": {"epochs": 1, "augment": "flip-crop"}},
            "cifar100": {"training": {"augment": "flip-crop"}},
            "tiny-imagenet": {"training": {"epochs": 1, "augment": "flip"}},
        },
    ),
}


def with_protocol(document: Table) -> dict[str, Any]:
    """The document with the values of its protocol for missing keys; it must have data and method."""
    name = document.get("protocol")
    if name is None:
        return dict(document)
    if not isinstance(name, str):
        raise RequestError(f"protocol = {name!r}: need a name: {', '.join(PROTOCOLS)}.")
    protocol = named_entry(PROTOCOLS, name, "protocol")
    table = dict(document)
    for key, preset in tables_of(protocol, document).items():
        table[key] = merged(preset, document[key], key, name) if key in document else preset
    table["method"] = method_with_protocol(protocol, table.get("method"))
    if isinstance(table.get("then"), list):
        table["then"] = [
            {**row, "method": method_with_protocol(protocol, row["method"])} if has_method(row) else row
            for row in table["then"]
        ]
    return table


def tables_of(protocol: Protocol, document: Table) -> dict[str, Any]:
    """The protocol's tables for the dataset and the method of this document."""
    tables = dict(protocol.tables)
    by_method = {"training": shared_training(protocol, document)}
    for further in (by_method, protocol.datasets.get(data_name(document), {})):
        tables |= {key: {**tables.get(key, {}), **table} for key, table in further.items() if table}
    return tables


def data_name(document: Table) -> str:
    """The name of the document's dataset; empty if it has none."""
    data = document.get("data")
    name = data.get("name") if isinstance(data, Mapping) else None
    return name if isinstance(name, str) else ""


def shared_training(protocol: Protocol, document: Table) -> Table:
    """The protocol's [training] for the document's methods; empty if it differs between stages.

    All stages share one table [training].
    """
    later = document.get("then")
    stages = [document, *(later if isinstance(later, list) else [])]
    methods = [stage["method"] for stage in stages if has_method(stage)]
    tables = [protocol.training.get(str(m.get("name")), {}) for m in methods if isinstance(m, Mapping)]
    return tables[0] if tables and all(table == tables[0] for table in tables) else {}


def merged(preset: Any, document_value: Any, key: str, name: str) -> Any:
    """The document's value of `key`; if it is a table, with the protocol's values for missing keys.

    `preset` is the value of the protocol `name`.
    """
    if not isinstance(preset, Mapping) or not isinstance(document_value, Mapping):
        return document_value
    if "name" in preset and document_value.get("name", preset["name"]) != preset["name"]:
        return document_value  # another factory has other arguments
    for inner, value in document_value.items():
        if value is None and inner in preset:
            raise RequestError(
                f"{key}.{inner} = None: the protocol {name!r} has {preset[inner]!r}, and None does not "
                "replace it. Give a value: training.clip = 'off' is no clipping, participation.share = 1.0 "
                "is all clients."
            )
    excluded = EITHER if key == "participation" and EITHER & set(document_value) else set()
    return {**{k: v for k, v in preset.items() if k not in excluded}, **document_value}


def method_with_protocol(protocol: Protocol, method: Any) -> Any:
    """A method's table with the protocol's arguments, and its weights if the method has this argument."""
    if not isinstance(method, Mapping) or "name" not in method:
        return method
    known = parameters(factory_of("method", method["name"]))
    weights = {"weights": protocol.weights} if "weights" in known else {}
    further = (
        {"and": [method_with_protocol(protocol, row) for row in method["and"]]} if "and" in method else {}
    )
    return {**weights, **protocol.methods.get(method["name"], {}), **method, **further}


def has_method(row: Any) -> bool:
    """Whether `row` is a table of a stage with a method."""
    return isinstance(row, Mapping) and "method" in row
