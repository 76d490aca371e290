"""The meaning of labels: names of the classes, compared between the server and its clients.

Two sites may both have labels 0 and 1 and mean opposite things by them. No number shows this, so names are
compared wherever both sides have them; if one side has none, a message says so.
"""

from collections.abc import Callable, Sequence
from pathlib import Path

from kedge.config.experiment import Experiment
from kedge.core.errors import DataError, RequestError
from kedge.data.npz_files import stored_label_names
from kedge.engines.flower.messages import MessageError

Names = tuple[str, ...]


def names_from_option(text: str, option: str = "--labels") -> Names:
    """The names in an option, such as "cat,dog"."""
    names = tuple(name.strip() for name in text.split(",")) if text.strip() else ()
    check_distinct(names, f"{option} {text}")
    return names


def names_of_labels(given: Names, experiment: Experiment, classes: int) -> Names:
    """The names of a server's labels: those of --labels, else those in the experiment's npz file."""
    if given:
        check_count(given, classes, "--labels")
        return given
    return stored_label_names(experiment.data["name"], experiment.data.get("path"))


def check_distinct(names: Sequence[str], source: str) -> None:
    """Raise if a name is empty or occurs twice."""
    if not all(names) or len(set(names)) < len(names):
        raise RequestError(f"{source}: need a different name for each label.")


def check_count(names: Names, classes: int, source: str) -> None:
    """Raise if there are names, but not one for each class."""
    if names and len(names) != classes:
        raise RequestError(
            f"{source} has {len(names)} names ({', '.join(names)}); the experiment has {classes} classes. "
            f"Give one name for each label from 0 to {classes - 1}, in this order."
        )


def label_difference(server: Names, client: Names) -> str | None:
    """A sentence on the first label whose two names differ; None if all are equal, or one side has none."""
    if not server or not client or server == client:
        return None
    for label, (ours, theirs) in enumerate(zip(server, client, strict=False)):
        if ours != theirs:
            order = " The names are the same in another order." if set(server) == set(client) else ""
            return f"label {label} means {ours!r} on the server and {theirs!r} on the client.{order}"
    return f"the server has {len(server)} names of labels, the client {len(client)}."


def check_site_labels(server: Names, own: Names, file: Path | None) -> None:
    """Raise on a client if its labels have other names than the server's."""
    difference = label_difference(server, own)
    if difference:
        raise DataError(
            f"{file or '--labels'}: the labels differ: {difference} Renumber y and label_names in the "
            f"server's order: {', '.join(server)}."
        )


def label_text(own: Names, server: Names) -> str:
    """A sentence for a site on the meaning of its labels."""
    if own and server:
        return f"the labels mean the same as on the server: {', '.join(own)}"
    if server:
        return (
            "you have no names for labels, so their meaning is not compared; on the server 0, 1, ... mean "
            f"{', '.join(server)}. Check that they do in your file."
        )
    without = "the server has no" if own else "neither you nor the server have"
    return f"{without} names for labels, so their meaning is not compared"


class LabelNames:
    """The names of a federation's labels: the server's, or else those of the first client with names."""

    def __init__(self, names: Names, say: Callable[[str], None]) -> None:
        self.names, self.say = names, say
        self.owner = "the server"
        if not names:
            say("no names for labels are given (--labels): only clients that have names are compared")

    def check(self, client: int, names: Names) -> None:
        """Compare a client's names; raise MessageError if they differ."""
        if not names:
            if self.names:
                self.say(f"client {client} has no names for its labels, so their meaning is not compared")
            return
        if not self.names:
            self.names, self.owner = names, f"client {client}"
            self.say(f"the labels of client {client} count for all clients: {', '.join(names)}")
            return
        difference = label_difference(self.names, names)
        if difference:
            owner = "" if self.owner == "the server" else f" (The server's names are those of {self.owner}.)"
            raise MessageError(f"client {client}: the labels differ: {difference}{owner}")
