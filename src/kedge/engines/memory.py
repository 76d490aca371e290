"""Memories: the state of each client between rounds, created at first use, replaced at the end of a round."""

from typing import Any

from kedge.core.algorithm import Algorithm
from kedge.core.client import overrides
from kedge.core.correction import reached_leaves
from kedge.core.model import Model
from kedge.core.tree import Leaves, Tree, only

EMPTY: dict[str, Any] = {"slots": {}, "local": {}, "buffers": {}}


class Memories:
    """The memory of each client: slots of corrections, leaves that are not shared, its own statistics."""

    def __init__(self) -> None:
        self.by_client: dict[int, dict[str, Any]] = {}

    def begin(self, algorithm: Algorithm, model: Model, params: Leaves, kept: frozenset[str]) -> None:
        """Start a stage with the model `params`; drop slots that are not in `kept`, and leaves now shared."""
        self.algorithm, self.model = algorithm, model
        self.shared = algorithm.shared(model)
        self.local = {k: v for k, v in params.items() if k not in self.shared}
        # A head of another stage's method stays in `local`; clients that trained it keep it in their memory.
        of_model = {*(k for unit in model.units for k in unit), *model.extra}
        self.kept = frozenset(k for k in self.local if k in of_model)
        for memory in self.by_client.values():
            memory["slots"] = {k: v for k, v in memory["slots"].items() if k in kept}
            memory["local"] = only(memory["local"], self.local)

    def of(self, client: int, shared: Leaves, buffers: Leaves) -> dict[str, Any]:
        """A client's state at the start of a round: its parameters, statistics and slots.

        `shared` and `buffers` are the leaves and statistics that the server has sent.
        """
        memory = self.by_client.get(client, EMPTY)
        missing = [c for c in self.algorithm.corrections if c.name not in memory["slots"]]
        initial = {c.name: c.init_client(reached_leaves(c, self.model, shared, self.local)) for c in missing}
        slots = {**memory["slots"], **initial}
        params, statistics = self.own_model(client, shared, buffers)
        slots_of_method = {c.name: slots[c.name] for c in self.algorithm.corrections}
        return {"params": params, "buffers": statistics, "slots": slots_of_method}

    def own_model(self, client: int, shared: Leaves, buffers: Leaves) -> tuple[Leaves, Leaves]:
        """A client's parameters and statistics: from the server, and from the client's memory."""
        memory = self.by_client.get(client, EMPTY)
        statistics = {**buffers, **memory["buffers"]} if self.model.statistics == "local" else buffers
        return {**self.local, **memory["local"], **shared}, statistics

    def keep(self, client: int, params: Leaves, buffers: Leaves, slots: Tree) -> None:
        """Store a client's memory after its round, unless it is empty."""
        memory = {
            "slots": slots,
            "local": {**self.by_client.get(client, EMPTY)["local"], **only(params, self.kept)},
            "buffers": buffers if self.model.statistics == "local" else {},
        }
        if any(memory["slots"].values()) or memory["local"] or memory["buffers"]:
            self.by_client[client] = memory

    @property
    def needed(self) -> bool:
        """Whether clients have a memory in this stage."""
        remembers = any(overrides(c, "init_client") for c in self.algorithm.corrections)
        return bool(remembers or self.kept or self.model.statistics == "local")

    def save(self) -> dict[str, Any]:
        """All memories as one tree."""
        return {str(client): memory for client, memory in sorted(self.by_client.items())}

    def load(self, saved: Tree) -> None:
        """Replace all memories by `saved`, the result of `save`."""
        self.by_client = {int(client): {**EMPTY, **memory} for client, memory in saved.items()}
