"""Drift of a round's clients: a correction that measures their updates and changes nothing in training.

A client uploads its update Δ_k, the direction Δ_k/‖Δ_k‖ of the whole model and of each unit, its norm, and
the cosine with its own previous update, which it stores (one model per client). All metrics follow from the
unweighted means over the round's clients (formulas in `drift.py`):

    drift.norm            mean ‖Δ_k‖                       drift.moved     ‖mean Δ_k‖
    drift.diversity       Σ‖Δ_k‖² / ‖Σ Δ_k‖²
    drift.cosine.clients  the mean of cos(Δ_j, Δ_k) over pairs of clients
    drift.cosine.rounds   the mean of cos(Δ_k, previous Δ_k) over clients that have both

Each is also measured per unit, as in drift.diversity.unit0. A value is missing (null in the history) if no
update is nonzero; drift.cosine.clients if fewer than two are; drift.diversity if the sum of all updates is
zero. Sums are clamped, so the measurement alone never makes an upload that is not finite.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from kedge.core.algorithm import equal
from kedge.core.correction import Cohort, Correction, End
from kedge.core.tree import Leaves, Tree, scale, sqnorm, zeros
from kedge.measure.drift import diversity, mean_pairwise_cosine

LIMIT = 1e30  # sums of squares are clamped to this: their mean must not overflow in single precision
KINDS = ("norm", "moved", "diversity", "cosine.clients", "cosine.rounds")


@dataclass(frozen=True)
class Updates(Correction):
    """Diversity, cosines and norms of the updates, of the whole model and per unit."""

    units: tuple[tuple[str, tuple[str, ...]], ...]  # name and shared leaves of each unit
    name = "updates"
    weight = equal
    rests = False

    def init_client(self, shared: Leaves) -> Tree:
        return {"last": zeros(shared), "square": self.empty(shared)}

    def init_server(self, shared: Leaves) -> Tree:
        """Statistics of the last round, [1 + units] each, and the number of its uploads, `size`.

        Means over clients: `square` is ‖Δ‖², `length` ‖Δ‖, `there` 1 if Δ ≠ 0, `cosine` the cosine with the
        previous Δ, `met` 1 if both are nonzero. Squared norms of means: `together` is ‖mean Δ‖², `aligned`
        ‖mean Δ/‖Δ‖‖².
        """
        zero = self.empty(shared)
        names = ("square", "length", "there", "cosine", "met", "together", "aligned")
        return {"size": zero[0], **{name: zero for name in names}}

    def empty(self, shared: Leaves) -> Tensor:
        """Zeros for the whole model and every unit, [1 + units]."""
        return next(iter(shared.values())).new_zeros(1 + len(self.units))

    def finish(self, end: End) -> tuple[Tree, Tree]:
        delta, before = end.delta, end.state
        square = self.sums({k: (v * v).sum() for k, v in delta.items()})
        product = self.sums({k: (v * before["last"][k]).sum() for k, v in delta.items()})
        length = square.sqrt()
        nonzero = (square > 0).to(square.dtype)
        inverse = torch.where(square > 0, 1 / torch.where(square > 0, length, 1.0), 0.0)
        lengths = length * before["square"].sqrt()  # ‖Δ‖ · ‖previous Δ‖
        upload = {
            "delta": delta,
            "direction": scale(inverse[0], delta),
            "directions": {
                k: inverse[number] * delta[k] for number, (_, leaves) in self.numbered() for k in leaves
            },
            "square": square,
            "length": length,
            "there": nonzero,
            "cosine": torch.where(lengths > 0, product / torch.where(lengths > 0, lengths, 1.0), 0.0).clamp(
                -1, 1
            ),
            "met": (lengths > 0).to(square.dtype),
        }
        return {"last": delta, "square": square}, upload

    def server(self, update: Leaves, mean: Tree, state: Tree, cohort: Cohort) -> tuple[Leaves, Tree]:
        square_of_mean = self.sums({k: (v * v).sum() for k, v in mean["delta"].items()})
        by_leaf = {k: (v * v).sum() for k, v in mean["directions"].items()}
        aligned = self.sums(by_leaf, sqnorm(mean["direction"]))
        means = {k: mean[k] for k in ("square", "length", "there", "cosine", "met")}
        size = torch.full_like(aligned[0], cohort.size)
        return update, {**means, "together": square_of_mean, "aligned": aligned, "size": size}

    def measures(self, state: Tree) -> dict[str, Tensor]:
        any_nonzero = state["there"] > 0
        values = {
            "norm": state["length"],
            "moved": state["together"].sqrt(),
            "diversity": diversity(state["square"], state["together"], state["size"]),
            "cosine.clients": mean_pairwise_cosine(state["aligned"], state["there"], state["size"]),
            "cosine.rounds": torch.where(state["met"] > 0, state["cosine"] / state["met"], torch.nan),
        }
        names = ["", *(f".{name}" for name, _ in self.units)]
        metrics: dict[str, Tensor] = {}
        for kind, numbers in values.items():
            if_all_zero = 0.0 if kind in ("norm", "moved") else torch.nan
            numbers = torch.where(any_nonzero, numbers, if_all_zero)
            metrics |= {f"drift.{kind}{name}": numbers[index] for index, name in enumerate(names)}
        return metrics

    def sums(self, by_leaf: Leaves, total: Tensor | None = None) -> Tensor:
        """Clamped sums of one number per leaf, [1 + units]: of the model (or `total`), and of each unit."""
        if total is None:
            total = torch.stack([by_leaf[k] for k in sorted(by_leaf)]).sum()
        of_units = [torch.stack([by_leaf[k] for k in leaves]).sum() for _, leaves in self.units]
        return torch.nan_to_num(torch.stack([total, *of_units])).clamp(-LIMIT, LIMIT)

    def numbered(self) -> list[tuple[int, tuple[str, tuple[str, ...]]]]:
        """The units with their index in `sums`; index 0 is the whole model."""
        return list(enumerate(self.units, 1))
