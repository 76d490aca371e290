"""A published table and its measurements as a page in Markdown, and the list of all tables."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from typing import Any

from kedge.report.reproduction.layout import HARD_SPACE, Line, Part, heading, parts
from kedge.report.reproduction.notes import legend, notes
from kedge.report.reproduction.text import (
    HEADS,
    NOTHING,
    RULES,
    duration,
    most_seeds,
    overview_cells,
    paper_of,
    summary,
    verdict_text,
)
from kedge.report.reproduction.values import overview_row, sittings
from kedge.reproduce.claims import Judgment
from kedge.reproduce.measured import Measured

WIDTH = 110  # characters of a table; GitHub shows about as many
BREAK = "<br>"
SITTINGS = "A sitting is one command on one machine. These have trained the runs of this table"


def page(measured: Measured, judgments: Sequence[Judgment]) -> str:
    """The page of a table: its numbers, its claims, and the commands that trained the runs."""
    return "\n".join(lines(measured, judgments)).rstrip("\n") + "\n"


def lines(measured: Measured, judgments: Sequence[Judgment]) -> Iterator[str]:
    """The lines of the page."""
    paper = measured.paper
    seeds = most_seeds(measured)
    yield from (f"# {paper.name}", "", f"{paper.title}.", "", f"Source: {paper.source}.", "")
    yield from (summary(overview_row(measured, judgments)), "")
    yield from (*(f"- **{name}**: {text}" for name, text in legend(measured, seeds)), "")
    for note in notes(measured):
        yield from (note, "")
    for block in paper.blocks:
        if block:
            yield from (f"## {block}", "")
        for part in parts(measured, block, seeds, WIDTH):
            yield from (*numbers(part), "")
    if judgments:
        rows = [
            (cell(judgment.claim.says), verdict(judgment), cell(judgment.evidence)) for judgment in judgments
        ]
        yield from ("## Claims of the paper", "", RULES, "")
        yield from (*table(("claim", "verdict", "evidence"), rows), "")
    if paper.notes:
        yield from ("## Notes", "", *(f"- {note}" for note in paper.notes), "")
    if measured.records:
        heads = ("date", "command", "runs", "time", "hardware", "precision", "kedge", "torch")
        yield from ("## Sittings", "", f"{SITTINGS}: {record_links(measured)}.", "")
        yield from (*table(heads, map(sitting_row, sittings(measured))), "")


def numbers(part: Part) -> Iterator[str]:
    """The lines of a part in Markdown; the lines of a row are in the same cells, divided by BREAK."""
    rows = []
    for row, group in groupby(part.lines, key=lambda line: line.row):
        lines = list(group)
        texts = zip(*(map(emphasized, [line] * len(line.texts), line.texts) for line in lines), strict=True)
        rows.append((cell(row), BREAK.join(line.name for line in lines), *map(BREAK.join, texts)))
    heads = (BREAK.join(map(cell, heading(name))) for name in part.columns)
    return table(("", "", *heads), rows, right=True)


def emphasized(line: Line, text: str) -> str:
    """The text of a number without line breaks, in bold if the number is measured."""
    unbroken = cell(text).replace(" ", HARD_SPACE)
    return f"**{unbroken}**" if line.name == "measured" and text not in ("", NOTHING) else unbroken


def verdict(judgment: Judgment) -> str:
    """A verdict after its sign, without a line break between them."""
    return verdict_text(judgment).replace(" ", HARD_SPACE, 1)


def record_links(measured: Measured) -> str:
    """Links to the folders with the records of the runs."""
    return ", ".join(f"[{name}/]({name}/)" for name in sorted({record.table for record in measured.records}))


def sitting_row(sitting: Mapping[str, Any]) -> tuple[str, ...]:
    """A row of the table of sittings."""
    return (
        sitting["started"][:10],
        f"`{code(sitting['command'])}`",
        str(sitting["runs"]),
        duration(sitting["seconds"]),
        cell(sitting["hardware"]),
        ", ".join(sitting["precisions"]),
        sitting["kedge"],
        sitting["torch"],
    )


def overview_page(rows: Iterable[Mapping[str, Any]]) -> str:
    """The list of all tables in Markdown, by paper; the name of a measured table is a link to its page."""
    heads = ("table", "what", *map(cell, HEADS), "time", "hardware")
    text_lines: list[str] = []
    for paper, group in groupby(rows, key=paper_of):
        text_lines += [f"## {paper}", "", *table(heads, map(overview_row_cells, group)), ""]
    return "\n".join(text_lines).rstrip("\n") + "\n"


def overview_row_cells(row: Mapping[str, Any]) -> tuple[str, ...]:
    """A row of the list of all tables."""
    return (
        f"[{row['name']}]({row['name']}.md)" if row["measured"] else row["name"],
        cell(row["title"]),
        *overview_cells(row),
        duration(row["seconds"]) if row["measured"] else NOTHING,
        cell(", ".join(row["hardware"])) or NOTHING,
    )


def table(heads: Sequence[str], rows: Iterable[Sequence[str]], right: bool = False) -> Iterator[str]:
    """A table in Markdown; with `right`, all columns but the first two are aligned to the right."""
    yield f"| {' | '.join(heads)} |"
    yield f"|{'---|' * 2}{('--:|' if right else '---|') * (len(heads) - 2)}"
    for row in rows:
        yield f"| {' | '.join(row)} |"


def cell(text: str) -> str:
    """Text in a cell of a table in Markdown."""
    return code(text).replace("*", "\\*").replace("<", "&lt;")


def code(text: str) -> str:
    """Code in a cell of a table in Markdown."""
    return text.replace("|", "\\|").replace("\n", " ")
