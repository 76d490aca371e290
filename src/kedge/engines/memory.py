"""Client memories by id: created at first use, replaced at the end of a round."""

from typing import Any

from kedge.core.algorithm import Algorithm
from kedge.core.client import overrides
from kedge.core.correction import reached_leaves
from kedge.core.model import Model
from kedge.core.tree import Leaves, Tree, only

EMPTY: dict[str, Any] = {"slots": {}, "local": {}, "buffers": {}}


class Memories:
    """The state of each client between rounds: slots of corrections, unshared leaves, own statistics."""

    def __init__(self) -> None:
        self.rows: dict[int, dict[str, Any]] = {}

    def begin(self, algorithm: Algorithm, model: Model, params: Leaves, kept: frozenset[str]) -> None:
        """Begin a stage: keep the slots of the corrections `kept`, and the leaves that stay local."""
        self.algorithm, self.model = algorithm, model
        self.shared = algorithm.shared(model)
        self.local = {k: v for k, v in params.items() if k not in self.shared}
        # A head of another stage's method stays in `local`; only a client that trained it remembers it.
        own = {*(k for unit in model.units for k in unit), *model.extra}
        self.kept = frozenset(k for k in self.local if k in own)
        for row in self.rows.values():
            row["slots"] = {k: v for k, v in row["slots"].items() if k in kept}
            row["local"] = only(row["local"], self.local)

    def of(self, client: int, shared: Leaves, buffers: Leaves) -> dict[str, Any]:
        """A client's state at the start of a round: parameters with its own leaves, statistics, slots."""
        row = self.rows.get(client, EMPTY)
        missing = [c for c in self.algorithm.corrections if c.name not in row["slots"]]
        slots = {
            **row["slots"],
            **{c.name: c.init_client(reached_leaves(c, self.model, shared, self.local)) for c in missing},
        }
        params, statistics = self.own_model(client, shared, buffers)
        own = {c.name: slots[c.name] for c in self.algorithm.corrections}
        return {"params": params, "buffers": statistics, "slots": own}

    def own_model(self, client: int, shared: Leaves, buffers: Leaves) -> tuple[Leaves, Leaves]:
        """A client's complete parameters and statistics."""
        row = self.rows.get(client, EMPTY)
        statistics = {**buffers, **row["buffers"]} if self.model.statistics == "local" else buffers
        return {**self.local, **row["local"], **shared}, statistics

    def keep(self, client: int, params: Leaves, buffers: Leaves, slots: Tree) -> None:
        """Store a client's state at the end of its round."""
        row = {
            "slots": slots,
            "local": {**self.rows.get(client, EMPTY)["local"], **only(params, self.kept)},
            "buffers": buffers if self.model.statistics == "local" else {},
        }
        if any(row["slots"].values()) or row["local"] or row["buffers"]:
            self.rows[client] = row

    @property
    def needed(self) -> bool:
        """Whether clients of this stage have a state between rounds."""
        remembers = any(overrides(c, "init_client") for c in self.algorithm.corrections)
        return bool(remembers or self.kept or self.model.statistics == "local")

    def save(self) -> dict[str, Any]:
        """All memories as one tree."""
        return {str(client): row for client, row in sorted(self.rows.items())}

    def load(self, saved: Tree) -> None:
        """Replace all memories by `saved`, the result of `save`."""
        self.rows = {int(client): {**EMPTY, **row} for client, row in saved.items()}
