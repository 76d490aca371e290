"""Cells of the evaluation matrix: what a metric's name says, and how a history is read.

{distributed, average, all, personal, a view}.{global, local}.{accuracy, loss}, then `.tuned` after
fine-tuning, then `.seen` or `.unseen` for a part of the clients.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from kedge.core.errors import RequestError, nearest

History = Sequence[Mapping[str, Any]]
CELL = re.compile(
    r"(?P<model>[^.]+)\.(?P<data>global|local)\.(?P<kind>accuracy|loss)(?P<suffix>(\.tuned)?(\.seen|\.unseen)?)"
)
MODELS = ("distributed", "average", "all", "", "personal")  # a method's own views stand at ""
SUFFIXES = ("", ".seen", ".unseen", ".tuned", ".tuned.seen", ".tuned.unseen")


class Cell(NamedTuple):
    """What a metric's name says."""

    model: str
    data: str  # global or local
    kind: str  # accuracy or loss
    suffix: str


class Reading(NamedTuple):
    """A cell over a run; values that were not finite are left out."""

    last: float
    best: float  # the highest accuracy, the lowest loss
    best_round: int  # the first round that had it
    last_round: int  # the round of `last`: not every cell is measured in every evaluation


def parsed(name: str) -> Cell | None:
    """The parts of a cell's name; None for what is no cell."""
    match = CELL.fullmatch(name)
    return Cell(match["model"], match["data"], match["kind"], match["suffix"]) if match else None


def in_order(names: Iterable[str]) -> list[str]:
    """The cells among these names, each once, in the order of the matrix."""

    def place(name: str) -> tuple[Any, ...]:
        model, data, kind, suffix = parsed(name) or Cell("", "", "", "")
        known = model if model in MODELS else ""
        return kind, MODELS.index(known), model, data, SUFFIXES.index(suffix)

    return sorted((name for name in set(names) if parsed(name)), key=place)


def cells(history: History) -> list[str]:
    """The cells a history has, in the order of the matrix."""
    return in_order(name for line in history for name, value in line.items() if value is not None)


def curve(history: History, name: str) -> list[tuple[int, float]]:
    """(round, value) of a metric, where it was measured."""
    return [(line["round"], line[name]) for line in history if line.get(name) is not None]


def reading(history: History, name: str) -> Reading:
    """Last and best value of a cell, each with its round."""
    values = curve(history, name)
    if not values or not parsed(name):
        there = cells(history)
        raise RequestError(
            f"metric {name!r}: the history has no such cell.{nearest(name, there)} "
            f"It has: {', '.join(there) or 'none; give a common test set or local tests'}."
        )
    better = min if ".loss" in name else max
    best_round, best = better(values, key=lambda pair: pair[1])
    return Reading(values[-1][1], best, best_round, values[-1][0])
