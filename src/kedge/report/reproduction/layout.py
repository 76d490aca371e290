"""Divide a published table into parts that fit a width: columns side by side, and the lines of every row.

A row of a published table has up to three lines: printed, measured, difference. Lines that are empty in all
columns of the part are left out.
"""

import math
import re
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from typing import NamedTuple

from kedge.report.reproduction.text import NOTHING, difference_text, measured_text, printed_text
from kedge.reproduce.measured import Measured, Place

LINES = ("printed", "measured", "difference")
GAP = 2  # characters between two columns
NARROW = 11  # characters of a line of a heading, if it can be broken there
HARD_SPACE = "\N{NO-BREAK SPACE}"
OUTSIDE = r"(?![^(]*\))"  # not inside parentheses

Texts = tuple[str, str, str]  # the texts of a place of the table, one for each of LINES


class Line(NamedTuple):
    """A line of a row of the table."""

    row: str
    name: str  # one of LINES
    texts: list[str]  # one per column


class Part(NamedTuple):
    """Columns of a block that are shown side by side."""

    columns: list[str]
    lines: list[Line]  # those of one row are consecutive


def parts(measured: Measured, block: str, seeds: int, width: int) -> Iterator[Part]:
    """The parts of a block, each at most `width` characters wide if a single column is not wider."""
    paper = measured.paper
    rows = [row for row in paper.rows if any(key[:2] == (block, row) for key in measured.by_name)]
    columns = [name for name in paper.columns if any((block, row, name) in measured.by_name for row in rows)]
    texts = {
        (row, column): place_texts(measured.place(block, row, column), seeds)
        for row in rows
        for column in columns
    }
    widths = {
        column: GAP
        + max(map(len, [*heading(column), *(text for row in rows for text in texts[row, column])]))
        for column in columns
    }
    for group in side_by_side(columns, widths, width - label_width(rows) + GAP):
        yield Part(
            group, [line for row in rows for line in lines_of(row, [texts[row, name] for name in group])]
        )


def label_width(rows: Sequence[str]) -> int:
    """The characters of the two columns that name rows and lines."""
    return max(map(len, rows)) + GAP + max(map(len, LINES)) + GAP


def place_texts(place: Place | None, seeds: int) -> Texts:
    """The three lines of a place; empty if the table has no such place."""
    if place is None:
        return "", "", ""
    return printed_text(place.entry), measured_text(place, seeds), difference_text(place)


def lines_of(row: str, cells: Sequence[Texts]) -> Iterator[Line]:
    """The lines of a row that have a text; the measured line if none has."""
    lines = [
        Line(row, name, list(texts)) for name, texts in zip(LINES, zip(*cells, strict=True), strict=True)
    ]
    if any(any(line.texts) for line in lines):
        yield from [line for line in lines if set(line.texts) - {"", NOTHING}] or lines[1:2]


def side_by_side(columns: Sequence[str], widths: Mapping[str, int], room: int) -> Iterator[list[str]]:
    """The columns in groups that fit into `room` characters; a family stays in one group if it fits."""
    group: list[str] = []
    for family in families(columns):
        for piece in pieces(family, widths, room):
            if group and sum(widths[name] for name in group + piece) > room:
                yield group
                group = []
            group = group + piece
    if group:
        yield group


def families(columns: Sequence[str]) -> list[list[str]]:
    """Consecutive columns whose headings share the first or the last part, whichever gives fewer families."""
    by_first = groupby(columns, key=lambda name: heading_parts(name)[0])
    by_last = groupby(columns, key=lambda name: heading_parts(name)[-1])
    fewest = min(([list(names) for _, names in grouped] for grouped in (by_first, by_last)), key=len)
    return fewest if len(fewest) < len(columns) else [list(columns)]


def pieces(family: Sequence[str], widths: Mapping[str, int], room: int) -> list[list[str]]:
    """A family in the smallest number of pieces of nearly equal length that fit into `room` characters."""
    divided: list[list[str]] = []
    for count in range(1, len(family) + 1):
        length = math.ceil(len(family) / count)
        divided = [list(family[start : start + length]) for start in range(0, len(family), length)]
        if all(sum(widths[name] for name in piece) <= room for piece in divided):
            break
    return divided


def heading_parts(name: str) -> list[str]:
    """The parts of a column's name: "FedAvg, α = 0.3" has two."""
    return re.split(rf",\s+{OUTSIDE}", name)


def heading(name: str) -> list[str]:
    """A column's name in short lines; "α = 0.3" and "(0, 100, 200)" are not broken."""
    lines: list[str] = []
    for part in re.split(rf"(?<=,)\s+{OUTSIDE}", name):
        joined = part.replace(" = ", f"{HARD_SPACE}={HARD_SPACE}").replace(" %", f"{HARD_SPACE}%")
        joined = re.sub(r"\([^)]*\)", lambda match: match[0].replace(" ", HARD_SPACE), joined)
        lines += textwrap.wrap(joined, NARROW, break_long_words=False, break_on_hyphens=False)
    return lines
