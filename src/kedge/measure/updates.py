"""How clients' updates of a round differ: a correction that corrects nothing.

A client sends its update Δ_k, the direction Δ_k/‖Δ_k‖ of the whole and unit by unit, its norm, and the cosine
with its own update before, which it remembers (a model in every client's memory). Their plain means over the
round's clients give all the numbers (`drift.py` has the formulas):

    drift.norm            mean ‖Δ_k‖                       drift.moved     ‖mean Δ_k‖
    drift.diversity       Σ‖Δ_k‖² / ‖Σ Δ_k‖²
    drift.cosine.clients  the mean of cos(Δ_j, Δ_k) over the pairs of clients
    drift.cosine.rounds   the mean of cos(Δ_k, the update of k before), over clients that have both

each also for a unit by itself, as in drift.diversity.unit0. There is no value (null in a history) where
nothing moved, for the cosine of clients where fewer than two moved, and for diversity where all
updates cancel exactly. Sums are bounded, so that no diagnostic ever makes an upload that is not finite.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from kedge.core.algorithm import equal
from kedge.core.correction import Cohort, Correction, End
from kedge.core.tree import Leaves, Tree, scale, sqnorm, zeros
from kedge.measure.drift import diversity, pairwise

MOST = 1e30  # no sum of squares is told above this: its mean must not overflow in single precision
KINDS = ("norm", "moved", "diversity", "cosine.clients", "cosine.rounds")


@dataclass(frozen=True)
class Updates(Correction):
    """Diversity, cosines and norms of the updates, whole and by unit."""

    units: tuple[tuple[str, tuple[str, ...]], ...]  # name and shared leaves of each part looked at by itself
    name = "updates"
    weight = equal
    rests = False

    def init_client(self, shared: Leaves) -> Tree:
        return {"last": zeros(shared), "square": self.empty(shared)}

    def init_server(self, shared: Leaves) -> Tree:
        none = self.empty(shared)
        kinds = ("square", "length", "there", "cosine", "met", "together", "aligned")
        return {"size": none[0], **{kind: none for kind in kinds}}

    def empty(self, shared: Leaves) -> Tensor:
        """A zero for the whole and for every unit."""
        return next(iter(shared.values())).new_zeros(1 + len(self.units))

    def finish(self, end: End) -> tuple[Tree, Tree]:
        delta, before = end.delta, end.state
        square = self.sums({k: (v * v).sum() for k, v in delta.items()})
        product = self.sums({k: (v * before["last"][k]).sum() for k, v in delta.items()})
        length = square.sqrt()
        there = (square > 0).to(square.dtype)
        inverse = torch.where(square > 0, 1 / torch.where(square > 0, length, 1.0), 0.0)
        both = length * before["square"].sqrt()
        upload = {
            "delta": delta,
            "direction": scale(inverse[0], delta),
            "directions": {
                k: inverse[number] * delta[k] for number, (_, leaves) in self.numbered() for k in leaves
            },
            "square": square,
            "length": length,
            "there": there,
            "cosine": torch.where(both > 0, product / torch.where(both > 0, both, 1.0), 0.0).clamp(-1, 1),
            "met": (both > 0).to(square.dtype),
        }
        return {"last": delta, "square": square}, upload

    def server(self, update: Leaves, mean: Tree, state: Tree, cohort: Cohort) -> tuple[Leaves, Tree]:
        together = self.sums({k: (v * v).sum() for k, v in mean["delta"].items()})
        apart = {k: (v * v).sum() for k, v in mean["directions"].items()}
        aligned = self.sums(apart, sqnorm(mean["direction"]))
        told = {k: mean[k] for k in ("square", "length", "there", "cosine", "met")}
        size = torch.full_like(aligned[0], cohort.size)
        return update, {**told, "together": together, "aligned": aligned, "size": size}

    def measures(self, state: Tree) -> dict[str, Tensor]:
        none = torch.nan
        moved = state["there"] > 0
        values = {
            "norm": state["length"],
            "moved": state["together"].sqrt(),
            "diversity": diversity(state["square"], state["together"], state["size"]),
            "cosine.clients": pairwise(state["aligned"], state["there"], state["size"]),
            "cosine.rounds": torch.where(state["met"] > 0, state["cosine"] / state["met"], none),
        }
        names = ["", *(f".{name}" for name, _ in self.units)]
        return {
            f"drift.{kind}{name}": torch.where(moved, numbers, 0.0 if kind in ("norm", "moved") else none)[at]
            for kind, numbers in values.items()
            for at, name in enumerate(names)
        }

    def sums(self, by_leaf: Leaves, whole: Tensor | None = None) -> Tensor:
        """Of one number a leaf: over the whole and over every unit, bounded; [1 + units]."""
        if whole is None:
            whole = torch.stack([by_leaf[k] for k in sorted(by_leaf)]).sum()
        parts = [torch.stack([by_leaf[k] for k in leaves]).sum() for _, leaves in self.units]
        return torch.nan_to_num(torch.stack([whole, *parts])).clamp(-MOST, MOST)

    def numbered(self) -> list[tuple[int, tuple[str, tuple[str, ...]]]]:
        """The units with their places among the sums; the whole is at 0."""
        return list(enumerate(self.units, 1))
