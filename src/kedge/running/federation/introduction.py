"""The introduction of a federation: the task that the server sends to a client, and the client's answer.

The task is text and numbers: the experiment as TOML, and the shape and normalization of the samples. The
client makes its own objects from it, and answers with fingerprints; the server compares them with its own.
"""

import hashlib
import json
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any, NamedTuple

from kedge.config.experiment import Experiment, resolve
from kedge.config.task import Task
from kedge.core.errors import RequestError
from kedge.core.tree import Leaves
from kedge.data.federation import Federation
from kedge.engines.flower.messages import Content, Facts, MessageError, Request
from kedge.running.folders.identity import digest, experiment_identity, fingerprint, flat
from kedge.running.folders.sources import code_names, contents
from kedge.version import __version__

PROTOCOL = 1  # raised when messages change their form
NAMES = {"kedge": "the version of kedge", "method": "the method", "model": "the network",
         "data": "the preprocessing of the data", "code": "your own code in the experiment"}  # fmt: skip


class DataForm(NamedTuple):
    """The form that a client's data must have."""

    shape: tuple[int, ...]  # of a sample
    classes: int
    scale: float
    mean: tuple[float, ...]
    std: tuple[float, ...]


def introduction(experiment: Experiment, task: Task) -> Request:
    """The message with the task."""
    form = form_of(task.federation)
    return Request(
        "task",
        {
            "protocol": PROTOCOL,
            "experiment": experiment.toml(),
            "run": digest(experiment_identity(experiment)),
            "clients": len(task.federation.clients),
            "shape": [int(n) for n in form.shape],
            "classes": form.classes,
            "scale": float(form.scale),
            "mean": [float(v) for v in form.mean],
            "std": [float(v) for v in form.std],
        },
        {},
    )


def form_of(data: Federation) -> DataForm:
    """The form of a federation's samples."""
    return DataForm(tuple(data.pool.x.shape[1:]), data.classes, data.scale, data.mean, data.std)


def read_form(content: Content) -> DataForm:
    """The form of the data in an introduction."""
    shape = content.facts.get("shape")
    if not isinstance(shape, list) or not all(isinstance(n, int) for n in shape):
        raise MessageError(f"its shape is {shape!r}, not a list of integers")
    mean, std = (tuple(content.numbers(name)) for name in ("mean", "std"))
    return DataForm(tuple(map(int, shape)), content.integer("classes"), content.number("scale"), mean, std)


def read_experiment(content: Content, own: Experiment | None) -> Experiment:
    """The experiment of an introduction; raise unless it is safe to run and equal to the client's `own`."""
    if content.integer("protocol") != PROTOCOL:
        raise RequestError(
            f"the server speaks version {content.integer('protocol')} of kedge's protocol, this client "
            f"version {PROTOCOL}. Install the same kedge on both sides; here it is {__version__}."
        )
    experiment = own or resolve(without_code(content.text("experiment")))
    if digest(experiment_identity(experiment)) != content.text("run"):
        raise RequestError(
            "the server trains another experiment than --experiment names, or its configuration does not "
            "mean the same in this version of kedge. Compare the two files, and the versions of kedge."
        )
    engine = replace(experiment.engine, name="sequential", device="cpu", compile="off")
    return replace(experiment, engine=engine)


def without_code(text: str) -> dict[str, Any]:
    """The document of an experiment; raise if it names code, because resolving it would execute that code."""
    try:
        document = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise MessageError(f"its experiment is not TOML ({error})") from error
    named = [*code_texts({key: value for key, value in document.items() if key != "data"})]
    if named:
        raise RequestError(
            f"the server's experiment names code of its own: {', '.join(named)}. kedge executes no file "
            "because a server requests it. Get the experiment and its files from the server's operator, read "
            "them, and give them with --experiment FILE."
        )
    return document


def code_texts(value: Any) -> Iterator[str]:
    """All texts with a colon in nested tables and keys: names of code are written file.py:name."""
    if isinstance(value, str) and ":" in value:
        yield value
    if isinstance(value, Mapping):
        value = [*value.keys(), *value.values()]
    if isinstance(value, list):
        for inner in value:
            yield from code_texts(inner)


def fingerprints(experiment: Experiment, task: Task) -> dict[str, str]:
    """Texts that are equal on two machines if kedge, method, network, preprocessing and code are equal."""
    form = form_of(task.federation)
    files = contents(code_names(experiment))
    return {
        "kedge": __version__,
        "method": text_digest(flat({"stages": list(task.stages)})),
        "model": leaves_digest(task.model.init(task.seed)[0]),
        "data": text_digest({**form._asdict(), "dtype": str(task.federation.dtype)}),
        "code": text_digest(
            {k: hashlib.sha256(v).hexdigest() for k, v in files.items() if k.endswith(".py")}
        ),
    }


def text_digest(values: Mapping[str, object]) -> str:
    """The sha256 of plain values."""
    return hashlib.sha256(json.dumps(values, sort_keys=True, default=list).encode()).hexdigest()


def leaves_digest(leaves: Leaves) -> str:
    """The sha256 of the names, shapes, dtypes and values of leaves."""
    return text_digest({k: fingerprint(v) for k, v in leaves.items()})


def answer(client: int, samples: int | None, prints: Mapping[str, str]) -> Request:
    """A client's answer to an introduction: number, fingerprints, number of samples (None: a private run)."""
    facts: Facts = {"client": client, **{f"print.{name}": text for name, text in prints.items()}}
    return Request("member", facts if samples is None else {**facts, "samples": samples}, {})


def check_answer(content: Content, prints: Mapping[str, str], clients: int) -> int:
    """The number of the client that answers; raise MessageError with the reason if it cannot take part."""
    if content.kind == "failed":
        raise MessageError(content.text("reason"))
    if content.kind != "member":
        raise MessageError(f"its message is {content.kind!r}, not the answer to the introduction")
    for name, expected in prints.items():
        found = content.text(f"print.{name}")
        if found != expected:
            raise MessageError(
                f"{NAMES[name]} differs: the server has {expected[:16]}, the client {found[:16]}"
            )
    client = content.integer("client")
    if client >= clients:
        raise MessageError(f"client {client}: the clients have the numbers 0 to {clients - 1}")
    if "samples" in content.facts and not content.integer("samples"):
        raise MessageError(f"client {client} has no samples")
    return client
