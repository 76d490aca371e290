"""Cells of the evaluation matrix, a model on a test set: their names, their order, and their values.

A cell is named {distributed, average, all, personal, <view>}.{global, local}.{accuracy, loss}. `.tuned`
follows for fine-tuned models, then `.seen` or `.unseen` for clients that took part in training or did not.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from kedge.core.errors import RequestError, nearest

History = Sequence[Mapping[str, Any]]
CELL = re.compile(
    r"(?P<model>[^.]+)\.(?P<data>global|local)\.(?P<kind>accuracy|loss)(?P<suffix>(\.tuned)?(\.seen|\.unseen)?)"
)
MODELS = ("distributed", "average", "all", "", "personal")  # "" is the place of a method's own views
SUFFIXES = ("", ".seen", ".unseen", ".tuned", ".tuned.seen", ".tuned.unseen")


class Cell(NamedTuple):
    """The parts of a metric's name."""

    model: str
    data: str  # global or local
    kind: str  # accuracy or loss
    suffix: str


class Summary(NamedTuple):
    """The last and the best value of a cell over a run, without values that were not finite."""

    last: float
    best: float  # highest accuracy or lowest loss
    best_round: int  # the first round with that value
    last_round: int  # the round of `last`: not every cell is measured in every evaluation


def parse_cell(name: str) -> Cell | None:
    """The parts of a cell's name, or None if `name` is not a cell."""
    match = CELL.fullmatch(name)
    return Cell(match["model"], match["data"], match["kind"], match["suffix"]) if match else None


def matrix_order(names: Iterable[str]) -> list[str]:
    """The distinct cells in `names`, in the order of the matrix."""

    def position(name: str) -> tuple[Any, ...]:
        model, data, kind, suffix = parse_cell(name) or Cell("", "", "", "")
        known = model if model in MODELS else ""
        return kind, MODELS.index(known), model, data, SUFFIXES.index(suffix)

    return sorted((name for name in set(names) if parse_cell(name)), key=position)


def cell_names(history: History) -> list[str]:
    """The names of the cells that `history` has values of, in the order of the matrix."""
    return matrix_order(name for line in history for name, value in line.items() if value is not None)


def curve(history: History, name: str) -> list[tuple[int, float]]:
    """(round, value) of a metric in the rounds that measured it."""
    return [(line["round"], line[name]) for line in history if line.get(name) is not None]


def cell_summary(history: History, name: str) -> Summary:
    """Last and best value of a cell, each with its round."""
    values = curve(history, name)
    if not values or not parse_cell(name):
        available = cell_names(history)
        raise RequestError(
            f"metric {name!r}: the history has no such cell.{nearest(name, available)} "
            f"It has: {', '.join(available) or 'none; give a common test set or local tests'}."
        )
    better = min if ".loss" in name else max
    best_round, best = better(values, key=lambda pair: pair[1])
    return Summary(values[-1][1], best, best_round, values[-1][0])
