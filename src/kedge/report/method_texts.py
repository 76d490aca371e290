"""Read the hand-written texts about methods and schedules, with the metric that a method's paper reports.

algorithms/texts/NAME.toml has the fields of `Text`. After a change: make docs.
"""

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import kedge.algorithms
from kedge.algorithms import METHOD_REGISTRY, SCHEDULE_REGISTRY
from kedge.core.errors import RequestError

FOLDER = Path(kedge.algorithms.__file__).parent / "texts"


@dataclass(frozen=True)
class Text:
    """The text of a method or a schedule, or of a method that follows another one."""

    paper: str
    idea: str = ""  # the first sentence is the row of the index
    equation: str = ""
    use: str = ""
    cost: str = ""
    disagree: tuple[str, ...] = ()  # where papers and codes differ
    reports: str = ""  # the metric in `cell`, in words
    cell: tuple[str, ...] = ()  # the metric of the paper's figures; several names if they mean the same model
    example: str = ""  # a method string for the page, if its first default is a bad example
    then: Mapping[str, "Text"] = field(default_factory=dict)  # by the method that follows


@cache
def text_of(name: str) -> Text:
    """The text of a registered method or schedule."""
    file = FOLDER / f"{name}.toml"
    if not file.is_file():
        raise RequestError(f"algorithms/texts/{file.name} does not exist: write it, with the fields of Text.")
    return read_text(tomllib.loads(file.read_text(encoding="utf-8")))


def read_text(table: Mapping[str, Any]) -> Text:
    """The text that a TOML table contains."""
    cell = table.get("cell", ())
    return Text(
        **{
            **table,
            "cell": (cell,) if isinstance(cell, str) else tuple(cell),
            "disagree": tuple(table.get("disagree", ())),
            "then": {name: read_text(inner) for name, inner in table.get("then", {}).items()},
        }
    )


def cells_of(label: str) -> tuple[str, ...]:
    """The metrics that the paper of a method reports, given the method's label in tables.

    For 'fedbug+feddyn' it is the schedule's paper; 'feddyn->fedavg' has a paper of its own.
    """
    first, arrow, second = label.partition("->")
    if arrow:
        following = text_of(first).then if first in METHOD_REGISTRY else {}
        return following[second].cell if second in following else ()
    schedule, plus, _ = label.partition("+")
    registry: Mapping[str, Any] = SCHEDULE_REGISTRY if plus else METHOD_REGISTRY
    name = schedule if plus else label
    return text_of(name).cell if name in registry else ()
