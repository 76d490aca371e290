"""The agreement of server and client before the first round: small facts, compared one by one.

Each side computes the facts from its own objects. A client sends its facts, and the server names the first
facts that differ, with both values.
"""

import hashlib
import json
from collections.abc import Mapping
from typing import Any

from kedge.config.experiment import Experiment
from kedge.config.task import Task
from kedge.core.tree import Leaves
from kedge.data.federation import Federation
from kedge.engines.flower.messages import Content, Facts, MessageError
from kedge.running.folders.identity import FREE, PATHS, fingerprint, flat, shown, without_folder
from kedge.running.folders.sources import code_names, contents
from kedge.version import __version__

NAMES = {"kedge": "the version of kedge", "method": "the method", "model": "the network",
         "data": "the preprocessing of the data", "code": "your own code in the experiment"}  # fmt: skip
PREFIX = "fact."
LISTED = 3  # differences that a message names one by one
Compared = dict[str, dict[str, Any]]  # by the keys of NAMES: facts by name


def facts_to_compare(experiment: Experiment, task: Task) -> Compared:
    """Plain values that are equal on two machines if both have the same program and would train the same."""
    files = contents(code_names(experiment))
    found = {
        "kedge": {"version": __version__},
        "method": flat({"stages": list(task.stages)}),
        "model": leaf_fingerprints(task.model.init(task.seed)[0]),
        "data": preprocessing(task.federation),
        "code": {k: f"sha256 {hashlib.sha256(v).hexdigest()}" for k, v in files.items() if k.endswith(".py")},
    }
    compared: Compared = json.loads(json.dumps(found, default=list))  # as they arrive
    return compared


def leaf_fingerprints(leaves: Leaves) -> dict[str, str]:
    """The shape, dtype and sha256 of each initial leaf."""
    return {name: fingerprint(v) for name, v in leaves.items()}


def preprocessing(data: Federation) -> dict[str, Any]:
    """The form of the samples, and the constants from which network inputs are computed."""
    x = data.pool.x
    return {
        "shape of a sample": [int(n) for n in x.shape[1:]],
        "kind of numbers": number_kind(str(x.dtype)),
        "classes": data.classes,
        "scale": float(data.scale),
        "mean": [float(v) for v in data.mean],
        "std": [float(v) for v in data.std],
        "dtype of inputs": str(data.dtype).removeprefix("torch."),
    }


def number_kind(dtype: str) -> str:
    """The kind of a dtype; samples of the same kind may be stored with another dtype."""
    return "floating point" if "float" in dtype else "integer"


def encoded(compared: Compared) -> Facts:
    """Facts to compare as facts of a message."""
    return {f"{PREFIX}{name}": json.dumps(values, sort_keys=True) for name, values in compared.items()}


def check_equal(content: Content, expected: Compared) -> None:
    """Raise MessageError with the differences between a client's facts and the server's."""
    for name, ours in expected.items():
        found = differences(ours, received_facts(content, name))
        if found:
            more = f"; and {len(found) - LISTED} more" if len(found) > LISTED else ""
            raise MessageError(f"{NAMES[name]} differs: {'; '.join(found[:LISTED])}{more}")


def received_facts(content: Content, name: str) -> dict[str, Any]:
    """The facts of one kind in a message."""
    try:
        found = json.loads(content.text(f"{PREFIX}{name}"))
    except (ValueError, RecursionError) as error:
        raise MessageError(f"its facts on {NAMES[name]} cannot be read ({error})") from error
    if not isinstance(found, dict):
        raise MessageError(f"its facts on {NAMES[name]} are no table")
    return found


def differences(server: Mapping[str, Any], client: Mapping[str, Any]) -> list[str]:
    """The facts that differ, each with both values."""
    found = []
    for name in {**server, **client}:
        if name not in client:
            found.append(f"{name}: the server has {shown(server[name], '')[0]}, the client has none")
        elif name not in server:
            found.append(f"{name}: the client has {shown(client[name], '')[0]}, the server has none")
        elif server[name] != client[name]:
            ours, theirs = shown(server[name], client[name])
            found.append(f"{name}: the server has {ours}, the client {theirs}")
    return found


def experiment_differences(server: Mapping[str, Any], own: Mapping[str, Any]) -> list[str]:
    """The keys that differ between two resolved configurations, except keys that a run may change."""
    ours, theirs = (
        {
            key: without_folder(value)
            for key, value in flat(document).items()
            if key == "engine.precision" or (key.partition(".")[0] not in FREE and key not in PATHS)
        }
        for document in (server, own)
    )
    return differences(ours, theirs)
