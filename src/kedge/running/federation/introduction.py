"""The introduction of a federation: the task that the server sends to a client, and the client's answer.

The task is text and numbers: the experiment as TOML, the form of the samples, the names of the labels. The
client makes its own objects from it, and answers with facts about them; the server compares these with its
own (agreement.py).
"""

import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any, NamedTuple

from kedge.config.experiment import Experiment, resolve
from kedge.config.task import Task
from kedge.core.errors import RequestError
from kedge.engines.flower.messages import Content, MessageError, Request
from kedge.running.federation.agreement import (
    LISTED,
    Compared,
    check_equal,
    encoded,
    experiment_differences,
)
from kedge.running.federation.labels import Names
from kedge.running.federation.site_data import DataForm, form_of
from kedge.running.folders.identity import digest, experiment_identity
from kedge.version import __version__

PROTOCOL = 2  # raised when messages change their form
MOST_CHARACTERS = 1000  # of a reason that a client sends


class Membership(NamedTuple):
    """The facts of a client in its answer."""

    client: int
    samples: int | None  # None: secret, in a private run
    evaluates: bool = False  # whether it has a validation set
    shares: bool = False  # whether it sends its metrics on this set
    labels: Names = ()


def introduction(experiment: Experiment, task: Task, labels: Names = ()) -> Request:
    """The message with the task; `labels` are the names of the classes, if the server has names."""
    form = form_of(task.federation)
    return Request(
        "task",
        {
            "protocol": PROTOCOL,
            "experiment": experiment.toml(),
            "run": digest(experiment_identity(experiment)),
            "clients": len(task.federation.clients),
            "labels": list(labels),
            "shape": [int(n) for n in form.shape],
            "dtype": form.dtype,
            "classes": form.classes,
            "scale": float(form.scale),
            "mean": [float(v) for v in form.mean],
            "std": [float(v) for v in form.std],
        },
        {},
    )


def read_form(content: Content) -> DataForm:
    """The form of the data in an introduction."""
    shape = content.facts.get("shape")
    if not isinstance(shape, list) or not all(isinstance(n, int) for n in shape):
        raise MessageError(f"its shape is {shape!r}, not a list of integers")
    mean, std = (tuple(content.numbers(name)) for name in ("mean", "std"))
    classes, scale = content.integer("classes"), content.number("scale")
    return DataForm(tuple(map(int, shape)), content.text("dtype"), classes, scale, mean, std)


def read_labels(content: Content) -> Names:
    """The names of labels in a message, in order."""
    content.names("labels")
    names = content.facts["labels"]
    assert isinstance(names, list)
    return tuple(map(str, names))


def read_experiment(content: Content, own: Experiment | None) -> Experiment:
    """The experiment of an introduction; raise unless it is safe to run and equal to the client's `own`."""
    if content.integer("protocol") != PROTOCOL:
        raise RequestError(
            f"the server speaks version {content.integer('protocol')} of kedge's protocol, this client "
            f"version {PROTOCOL}. Install the same kedge on both sides; here it is {__version__}."
        )
    experiment = own or resolve(without_code(document_of(content)))
    if digest(experiment_identity(experiment)) != content.text("run"):
        found = experiment_differences(document_of(content), tomllib.loads(experiment.toml()))
        raise RequestError(
            f"the server trains another experiment{' than --experiment names' if own else ''}: "
            f"{'; '.join(found[:LISTED]) or 'the settings mean something else in this version of kedge'}. "
            "Get the server's file, and the same version of kedge."
        )
    engine = replace(experiment.engine, name="sequential", device="cpu", compile="off")
    return replace(experiment, engine=engine)


def document_of(content: Content) -> dict[str, Any]:
    """The configuration in an introduction, which is not executed."""
    try:
        return tomllib.loads(content.text("experiment"))
    except tomllib.TOMLDecodeError as error:
        raise MessageError(f"its experiment is not TOML ({error})") from error


def without_code(document: dict[str, Any]) -> dict[str, Any]:
    """The document of an experiment; raise if it names code, because resolving it would execute that code."""
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


def answer(member: Membership, compared: Compared) -> Request:
    """A client's answer to an introduction; without the number of samples if it is secret."""
    facts = {name: value for name, value in member._asdict().items() if value is not None}
    return Request("member", {**facts, "labels": list(member.labels), **encoded(compared)}, {})


def check_answer(content: Content, compared: Compared, clients: int) -> int:
    """The number of the client that answers; raise MessageError with the reason if it cannot take part."""
    if content.kind == "failed":
        raise MessageError(content.text("reason")[:MOST_CHARACTERS])
    if content.kind != "member":
        raise MessageError(f"its message is {content.kind!r}, not the answer to the introduction")
    check_equal(content, compared)
    client = content.integer("client")
    if client >= clients:
        raise MessageError(f"client {client}: the clients have the numbers 0 to {clients - 1}")
    if "samples" in content.facts and not content.integer("samples"):
        raise MessageError(f"client {client} has no samples")
    return client
