"""A published table and its measurements for a terminal; wide tables are split by columns."""

import textwrap
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from kedge.report.reproduction import overview_row, sittings
from kedge.report.reproduction_text import (
    counted,
    difference_text,
    duration,
    measured_text,
    most_seeds,
    overview_cells,
    printed_text,
    reading_notes,
    spread_notes,
    summary,
)
from kedge.reproduce.claims import Judgement
from kedge.reproduce.measured import Measured, Place

GAP = 2
LINES = ("printed", "measured", "difference")
NARROW = 11  # characters of a column's heading before it is wrapped
STYLES = {"held": "green", "not held": "red", "within noise": "yellow", "not measured": "dim"}


def rendered(measured: Measured, judgements: Sequence[Judgement], width: int) -> Iterator[RenderableType]:
    """The table, its claims and its sittings."""
    paper = measured.paper
    row = overview_row(measured, judgements)
    yield Text.assemble((paper.name, "bold"), f"  {paper.title}")
    yield Text(paper.source, "dim")
    yield Text(summary(row))
    seeds = most_seeds(measured)
    for block in paper.blocks:
        yield Text()
        if block:
            yield Text(block, "bold")
        yield from block_tables(measured, block, seeds, width)
    yield Text()
    for note in [*spread_notes(measured, seeds), *reading_notes(measured)]:
        yield Text(note, "dim")
    if judgements:
        yield Text("\nClaims", "bold")
        yield Group(*map(claim, judgements))
    if measured.records:
        yield Text("\nSittings", "bold")
        yield from (Text(sitting_line(one), "dim") for one in sittings(measured))


def block_tables(measured: Measured, block: str, seeds: int, width: int) -> Iterator[Table]:
    """The tables of a block, one below the other, each with the columns that fit."""
    rows = [row for row in measured.paper.rows if any(key[:2] == (block, row) for key in measured.by_name)]
    columns = [
        name for name in measured.paper.columns if any((block, row, name) in measured.by_name for row in rows)
    ]
    texts = {name: [cell_texts(measured.place(block, row, name), seeds) for row in rows] for name in columns}
    labels = max(map(len, rows)) + GAP + max(map(len, LINES)) + GAP
    for group in side_by_side(texts, width - labels):
        table = Table(box=None, header_style="bold", pad_edge=False, padding=(0, GAP, 0, 0))
        table.add_column("", no_wrap=True)
        table.add_column("", no_wrap=True)
        for name in group:
            table.add_column(heading(name), justify="right", no_wrap=True)
        for number, row in enumerate(rows):
            for line, what in enumerate(LINES):
                cells = [texts[name][number][line] for name in group]
                style = "dim" if what != "measured" else None
                table.add_row(Text(row if not line else "", "bold"), what, *cells, style=style)
        yield table


def cell_texts(place: Place | None, seeds: int) -> tuple[str, str, str]:
    """The three lines of a place."""
    if place is None:
        return "", "", ""
    return printed_text(place.entry), measured_text(place, seeds), difference_text(place)


def side_by_side(texts: Mapping[str, Sequence[Sequence[str]]], room: int) -> Iterator[list[str]]:
    """The names of the columns, in groups that fit into `room` characters."""
    group: list[str] = []
    used = 0
    for name, cells in texts.items():
        lines = [*heading(name).splitlines(), *(text for cell in cells for text in cell)]
        wide = max(map(len, lines)) + GAP
        if group and used + wide > room + GAP:
            yield group
            group, used = [], 0
        group.append(name)
        used += wide
    if group:
        yield group


def heading(name: str) -> str:
    """A column's name in short lines; "α = 0.3" is not broken."""
    joined = name.replace(" = ", "\N{NO-BREAK SPACE}=\N{NO-BREAK SPACE}").replace(" %", "\N{NO-BREAK SPACE}%")
    return "\n".join(textwrap.wrap(joined, NARROW, break_long_words=False, break_on_hyphens=False))


def claim(judgement: Judgement) -> RenderableType:
    """A verdict, the claim and the evidence below."""
    verdict = Text(judgement.label, f"bold {STYLES[judgement.verdict]}")
    said = Text.assemble(verdict, f"  “{judgement.claim.says}”")
    return Group(said, Padding(Text(judgement.evidence, "dim"), (0, 0, 0, 2)))


def sitting_line(sitting: Mapping[str, Any]) -> str:
    """A sitting in one line."""
    return (
        f"{sitting['started'][:10]}  {sitting['command']}  "
        f"({counted(sitting['runs'], 'run')} in {duration(sitting['seconds'])}, {sitting['hardware']})"
    )


def overview_table(rows: Sequence[Mapping[str, Any]]) -> Table:
    """The tables that can be reproduced, one row each."""
    table = Table(header_style="bold", box=None, pad_edge=False, padding=(0, GAP, 0, 0))
    table.add_column("table", no_wrap=True)
    table.add_column("source", overflow="fold")
    for name in ("measured", "seeds", "off by", "claims held"):
        table.add_column(name, justify="right", no_wrap=True)
    for row in rows:
        table.add_row(row["name"], row["source"], *overview_cells(row))
    return table
