"""Clients that are killed, cheat or answer late: functions of processes, around kedge's own client."""

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.federation.processes import run_kedge
from torch import Tensor

from kedge.core.client import local_step
from kedge.engines import sequential
from kedge.engines.flower.flwr_private import Message, RecordDict
from kedge.engines.flower.messages import Request, from_record, to_record
from kedge.engines.flower.supernode import Credentials, SuperNode
from kedge.running.federation.join import Client
from kedge.running.federation.site import Site

WEIGHT = "delta/1.weight"


def die_in_a_step(round: int, step: int, arguments: list[str], folder: Path, log: Path) -> None:
    """kedge join, killed by SIGKILL in a local step of a round, both counted from 1."""
    steps = 0

    def deadly_step(*values: Any) -> Any:
        nonlocal steps
        fixed = values[6]
        steps += int(fixed["round"]) + 1 == round
        if steps == step:
            os.kill(os.getpid(), signal.SIGKILL)
        return local_step(*values)

    vars(sequential)["local_step"] = deadly_step
    run_kedge(arguments, folder, log)


Change = Callable[[Request], Request]


def changed(change: Callable[[Tensor], Tensor]) -> Change:
    """A change of one tensor of an upload."""
    return lambda upload: upload._replace(tensors={**upload.tensors, WEIGHT: change(upload.tensors[WEIGHT])})


def renamed(upload: Request) -> Request:
    return upload._replace(tensors={**upload.tensors, "delta/other": upload.tensors[WEIGHT]})


def ten_times_as_long(upload: Request) -> Request:
    tensors = {k: 10 * v if k.startswith("delta/") else v for k, v in upload.tensors.items()}
    return upload._replace(tensors=tensors)


BAD_UPLOADS: dict[int, tuple[Change, str]] = {  # by round, from 1: a changed upload, the server's reason
    2: (changed(lambda v: v * float("nan")), "not finite"),
    3: (changed(lambda v: v + float("inf")), "not finite"),
    4: (changed(lambda v: v[:1]), f"{WEIGHT} is torch.float64"),
    5: (renamed, "delta/other is not expected"),
    6: (ten_times_as_long, "times the median"),
}
REPLAY, TWICE, WITHDRAWN = 7, 8, 9  # rounds with: the upload of round 1, two answers, also a late answer
ATTACKED = 9


def send_bad_uploads(arguments: list[str], folder: Path, log: Path) -> None:
    """A client that answers the rounds of BAD_UPLOADS, REPLAY, TWICE and WITHDRAWN as their names say."""
    first: Request | None = None
    before: Message | None = None

    def answer(node: SuperNode, message: Message, round: int, upload: Request) -> None:
        nonlocal first, before
        first = first or upload
        if round == WITHDRAWN and before is not None:
            node.reply(before, record(first))
        sent = first if round == REPLAY else BAD_UPLOADS[round][0](upload) if round in BAD_UPLOADS else upload
        node.reply(message, record(sent))
        if round == TWICE:
            node.reply(message, record(first))
        before = message

    take_part(arguments, answer)


def answer_late(round: int, seconds: float, arguments: list[str], folder: Path, log: Path) -> None:
    """A client that waits for some seconds before it answers in a round."""

    def answer(node: SuperNode, message: Message, now: int, upload: Request) -> None:
        time.sleep(seconds if now == round else 0)
        node.reply(message, record(upload))

    take_part(arguments, answer)


def take_part(arguments: list[str], answer: Callable[[SuperNode, Message, int, Request], None]) -> None:
    """Take part as kedge join with these arguments does; `answer` sends the uploads, by round from 1."""
    _, address, _, client, _, memory, *_ = arguments
    own = Client(Site(address, int(client), Path(memory)), lambda text: None)
    with SuperNode(address, Credentials()) as node:
        while True:
            message = node.receive()
            content = from_record(message.content)
            if content.kind == "end":
                node.reply(message, to_record("read", {}, {}))
                return
            reply = own.reply(content)
            if content.kind == "train":
                answer(node, message, content.integer("round") + 1, reply)
            else:
                node.reply(message, record(reply))


def record(request: Request) -> RecordDict:
    return to_record(request.kind, request.facts, request.tensors)
