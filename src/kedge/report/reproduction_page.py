"""A published table and its measurements as a page in Markdown, and the list of all tables."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from kedge.report.reproduction import overview_row, sittings
from kedge.report.reproduction_text import (
    RULES,
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

CELL = "Each cell: the printed number, **the measured mean ± standard deviation**, and the difference."
SIGNS = {"held": "✓", "not held": "✗", "within noise": "≈", "not measured": "–"}


def page(measured: Measured, judgements: Sequence[Judgement]) -> str:
    """The page of a table: its numbers, its claims, and the commands that trained the runs."""
    return "\n".join(lines(measured, judgements)) + "\n"


def lines(measured: Measured, judgements: Sequence[Judgement]) -> Iterator[str]:
    """The lines of the page."""
    paper = measured.paper
    seeds = most_seeds(measured)
    yield from (f"# {paper.name}", "", f"{paper.title}.", "", f"Source: {paper.source}.", "")
    yield from (summary(overview_row(measured, judgements)), "")
    notes = [CELL, *spread_notes(measured, seeds), *reading_notes(measured)]
    yield from (" ".join(notes), "")
    for block in paper.blocks:
        if block:
            yield from (f"## {block}", "")
        yield from (*numbers(measured, block, seeds), "")
    if judgements:
        rows = [(cell(one.claim.says), verdict(one), cell(one.evidence)) for one in judgements]
        yield from ("## Claims", "", RULES, "")
        yield from (*table(("claim", "verdict", "evidence"), rows), "")
    if paper.notes:
        yield from ("## Notes", "", *(f"- {note}" for note in paper.notes), "")
    if measured.records:
        heads = ("date", "command", "runs", "time", "hardware", "kedge", "torch")
        yield from ("## Sittings", "", *table(heads, map(sitting_row, sittings(measured))), "")


def numbers(measured: Measured, block: str, seeds: int) -> Iterator[str]:
    """The table of a block, in the paper's rows and columns."""
    paper = measured.paper
    rows = [row for row in paper.rows if any(key[:2] == (block, row) for key in measured.by_name)]
    columns = [one for one in paper.columns if any((block, row, one) in measured.by_name for row in rows)]
    found = [
        (cell(row), *(place_cell(measured.place(block, row, column), seeds) for column in columns))
        for row in rows
    ]
    return table(("", *map(cell, columns)), found, right=True)


def place_cell(place: Place | None, seeds: int) -> str:
    """A cell with printed and measured number and difference; only the printed one if none is measured."""
    if place is None:
        return ""
    if not place.by_seed:
        return printed_text(place.entry)
    return f"{printed_text(place.entry)}<br>**{measured_text(place, seeds)}**<br>{difference_text(place)}"


def verdict(judgement: Judgement) -> str:
    """A verdict with its sign, on one line."""
    return f"{SIGNS[judgement.verdict]} {judgement.label}".replace(" ", "&nbsp;", 1)


def sitting_row(sitting: Mapping[str, Any]) -> tuple[str, ...]:
    """A row of the table of sittings."""
    return (
        sitting["started"][:10],
        f"`{cell(sitting['command'])}`",
        str(sitting["runs"]),
        duration(sitting["seconds"]),
        cell(sitting["hardware"]),
        sitting["kedge"],
        sitting["torch"],
    )


def overview_page(rows: Sequence[Mapping[str, Any]]) -> str:
    """The list of all tables in Markdown; each name is a link to its page."""
    heads = ("table", "source", "measured", "seeds", "off by", "claims held")
    found = [
        (f"[{row['name']}]({row['name']}.md)", cell(row["source"]), *overview_cells(row)) for row in rows
    ]
    return "\n".join(table(heads, found)) + "\n"


def table(heads: Sequence[str], rows: Iterable[Sequence[str]], right: bool = False) -> Iterator[str]:
    """A table in Markdown; with `right`, all columns but the first are aligned to the right."""
    yield f"| {' | '.join(heads)} |"
    yield f"|---{'|--:' * (len(heads) - 1) if right else '|---' * (len(heads) - 1)}|"
    for row in rows:
        yield f"| {' | '.join(row)} |"


def cell(text: str) -> str:
    """Text in a cell of a table in Markdown."""
    return text.replace("|", "\\|").replace("\n", " ")
