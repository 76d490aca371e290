"""A published table and its measurements for a terminal; wide tables are split by columns."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from kedge.report.numbers import plural
from kedge.report.reproduction.layout import GAP, Part, heading, parts
from kedge.report.reproduction.notes import legend, notes
from kedge.report.reproduction.text import (
    HEADS,
    HEADS_NOTE,
    RULES,
    duration,
    most_seeds,
    overview_cells,
    paper_of,
    summary,
    verdict_text,
)
from kedge.report.reproduction.values import overview_row, sittings
from kedge.report.tables.layout import plain_table
from kedge.reproduce.claims import Judgment
from kedge.reproduce.measured import Measured

STYLES = {"printed": "", "measured": "bold", "difference": "dim"}
VERDICTS = {"held": "green", "not held": "red", "within noise": "yellow", "not measured": "dim"}


def table_report(measured: Measured, judgments: Sequence[Judgment], width: int) -> Iterator[RenderableType]:
    """The table, its claims and its sittings."""
    paper = measured.paper
    yield Text.assemble((paper.name, "bold"), f"  {paper.title}")
    yield Text(paper.source, "dim")
    yield Text(summary(overview_row(measured, judgments)))
    seeds = most_seeds(measured)
    for block in paper.blocks:
        yield Text()
        if block:
            yield Text(block, "bold")
        for number, part in enumerate(parts(measured, block, seeds, width)):
            yield Group(*[Text()] * (number > 0), table(part))
    yield Text()
    for name, meaning in legend(measured, seeds):
        yield Text(f"{name}: {meaning}", "dim")
    for note in notes(measured):
        yield Text(note, "dim")
    if judgments:
        yield Text("\nClaims of the paper", "bold")
        yield Group(*map(claim, judgments))
        yield Text(RULES, "dim")
    if measured.records:
        yield Text("\nSittings", "bold")
        yield from (Text(sitting_line(sitting), "dim") for sitting in sittings(measured))


def table(part: Part) -> Table:
    """A part of the published table; the name of a row is in its first line."""
    part_table = plain_table(GAP)
    part_table.add_column("", no_wrap=True)
    part_table.add_column("", no_wrap=True)
    for name in part.columns:
        part_table.add_column("\n".join(heading(name)), justify="right", vertical="bottom", no_wrap=True)
    previous = ""
    for line in part.lines:
        row = Text(line.row if line.row != previous else "", "bold")
        part_table.add_row(row, line.name, *line.texts, style=STYLES[line.name])
        previous = line.row
    return part_table


def claim(judgment: Judgment) -> RenderableType:
    """A verdict, the claim and the evidence below."""
    verdict = Text(verdict_text(judgment), f"bold {VERDICTS[judgment.verdict]}")
    headline = Text.assemble(verdict, f"  “{judgment.claim.says}”")
    return Group(headline, Padding(Text(judgment.evidence, "dim"), (0, 0, 0, 2)))


def sitting_line(sitting: Mapping[str, Any]) -> str:
    """A sitting in one line."""
    return (
        f"{sitting['started'][:10]}  {sitting['command']}  "
        f"({plural(sitting['runs'], 'run')} in {duration(sitting['seconds'])}, {sitting['hardware']})"
    )


def overview_table(rows: Sequence[Mapping[str, Any]]) -> RenderableType:
    """The tables that can be reproduced, by paper: name and numbers, and the title in the line below."""
    cells = [[row["name"], *overview_cells(row)] for row in rows]
    widths = [max(map(len, column)) for column in zip(("table", *HEADS), *cells, strict=True)]
    lines: list[RenderableType] = [Text(columns(("table", *HEADS), widths), "bold")]
    paper = ""
    for row, texts in zip(rows, cells, strict=True):
        if paper_of(row) != paper:
            paper = paper_of(row)
            lines.append(Text(f"\n{paper}", "italic"))
        lines.append(Text(columns(texts, widths)))
        lines.append(Padding(Text(row["title"], "dim"), (0, 0, 0, GAP)))
    return Group(*lines, Text(f"\n{HEADS_NOTE}", "dim"))


def columns(texts: Sequence[str], widths: Sequence[int]) -> str:
    """One line of texts in columns of `widths` characters; all but the first are aligned to the right."""
    first, *others = [text.rjust(width) for text, width in zip(texts, widths, strict=True)]
    return (" " * GAP).join((texts[0].ljust(len(first)), *others))
