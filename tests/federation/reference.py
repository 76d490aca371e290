"""A federation's training again in one process: the sequential engine, with the same clients left out.

It has no messages, no server's engine and no memories on disks: equal results were obtained another way.
"""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from kedge.config.assemble import assemble
from kedge.config.document import read
from kedge.config.experiment import resolve
from kedge.core.server import Rejection
from kedge.core.tree import Leaves
from kedge.engines.engine import Order
from kedge.engines.sequential import Sequential
from kedge.engines.sums import Sums
from kedge.running.federation.serve import federated
from kedge.running.runner import run


class LeavingOut(Sequential):
    """The sequential engine without the clients that the history rejects, and with lost memories."""

    left_out: Mapping[int, Mapping[int, str]]  # round -> client -> reason
    lost: Mapping[int, int]  # round -> the client that has lost its memory

    def train(self, order: Order, clients: Sequence[int]) -> Sums:
        absent = self.left_out[order.round + 1]
        if order.round + 1 in self.lost:
            forgotten = str(self.lost[order.round + 1])
            self.load({client: memory for client, memory in self.save().items() if client != forgotten})
        sums = super().train(order, [client for client in clients if client not in absent])
        return sums + Sums(rejected=tuple(Rejection(client, reason) for client, reason in absent.items()))


def history(folder: Path) -> list[dict[str, Any]]:
    """The complete lines of a run's history, which may still be written."""
    path = folder / "history.jsonl"
    text = path.read_text() if path.is_file() else ""
    return [json.loads(line) for line in text.splitlines(keepends=True) if line.endswith("\n")]


def rejections(folder: Path) -> dict[int, dict[int, str]]:
    """For each round of a run, the clients that were left out, and the reasons."""
    return {
        line["round"]: {row["client"]: row["reason"] for row in line["rejected"]} for line in history(folder)
    }


def train_again(experiment: Path, deployed: Path, lost: Mapping[int, int] | None = None) -> Leaves:
    """The model of a federation's training in one process, with the same clients left out of each round."""
    task = federated(assemble(resolve(read(str(experiment)))))
    engine = LeavingOut(task.model, task.federation)
    engine.left_out, engine.lost = rejections(deployed), lost or {}
    server = run(task, engine).server
    return {**server.own, **server.shared}
