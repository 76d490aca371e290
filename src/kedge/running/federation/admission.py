"""Admission: the server's checks of a client that has answered the introduction."""

from dataclasses import dataclass

from kedge.config.task import Task
from kedge.engines.flower.messages import Content, MessageError
from kedge.engines.flower.roster import Roster
from kedge.running.federation.agreement import Compared
from kedge.running.federation.introduction import check_answer, read_labels
from kedge.running.federation.labels import LabelNames


@dataclass(frozen=True, eq=False)
class Admission:
    """Admits clients to one training; called by the thread of the training."""

    task: Task
    compared: Compared  # the server's facts
    labels: LabelNames
    owners: dict[int, int]  # node -> the client whose key it uses; {} without authentication
    roster: Roster

    def __call__(self, node: int, answer: Content) -> int:
        """The number of the client, which has now joined; raise MessageError if it cannot take part."""
        client = check_answer(answer, self.compared, len(self.task.federation.clients))
        check_owner(client, self.owners.get(node))
        self.labels.check(client, read_labels(answer))
        self.roster.join(client, 0 if self.task.privacy.active else answer.integer("samples"))
        return client


def check_owner(client: int, owner: int | None) -> None:
    """Raise MessageError if a client is not the owner of its key."""
    if owner is not None and owner != client:
        raise MessageError(f"client {client} uses the key of client {owner}")
