"""What is written by hand about methods and schedules (texts.toml), and the accuracy a paper reports."""

import tomllib
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

FILE = Path(__file__).with_name("texts.toml")


@cache
def texts() -> dict[str, dict[str, Any]]:
    """The tables of texts.toml: index, methods, schedules, stages."""
    return tomllib.loads(FILE.read_text(encoding="utf-8"))


def cells_in(text: Mapping[str, Any]) -> tuple[str, ...]:
    """The metrics that the figures of this text's paper are; each will do where there are several."""
    cell = text.get("cell", ())
    return (cell,) if isinstance(cell, str) else tuple(cell)


def cells_of(label: str) -> tuple[str, ...]:
    """The same for a method as tables call it; none where no paper has such a figure.

    Of 'fedbug+feddyn' the schedule's paper speaks, of 'feddyn->fedavg' one of its own.
    """
    known = texts()
    schedule, plus, _ = label.partition("+")
    if "->" in label:
        return cells_in(known["stages"].get(label, {}))
    return cells_in(known["schedules"].get(schedule, {}) if plus else known["methods"].get(label, {}))
