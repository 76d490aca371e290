"""The evaluation matrix for a terminal, one row per group of runs and one column per cell, and its notes."""

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any, Literal

from rich.table import Table
from rich.text import Text

from kedge.measure.cells import Cell, matrix_order, parse_cell
from kedge.report.tables.comparison import percent
from kedge.report.tables.layout import column_blocks, cut_middle, plain_table

Rows = Sequence[dict[str, Any]]
Which = Literal["last", "best"]
NO_ACCURACY = "no accuracy was measured: the runs have no test data, or no round yet"
PARTIAL = "in parentheses: not every run has it in its last evaluation"
SETTINGS = {  # the setting that measures a cell, by a part of its name
    "all": "evaluation.all=true",
    "tuned": "evaluation.tune=all",
    "local": "evaluation.local_test=0.2",
}


def matrix_tables(rows: Rows, width: int, which: Which = "last") -> Iterator[Table]:
    """The matrix as one table, or as several if it is wider than `width`."""
    names = matrix_order(name for row in rows for name, cell in row["cells"].items() if is_shown(name, cell))
    table = partial(block_table, rows, width // 2, which)
    for block in column_blocks(names, table, width):
        yield table(block)
    if not names:
        yield table([])


def is_shown(name: str, cell: dict[str, Any]) -> bool:
    """Whether a cell has a column: .seen and .unseen have one only if some clients are unseen at the end."""
    return not (cell["partial"] and name.endswith("seen"))


def block_table(rows: Rows, label_width: int, which: Which, names: Sequence[str]) -> Table:
    """The table of some cells; methods are at most `label_width` wide."""
    table = plain_table(gap=1)
    lines = headings(names)
    table.add_column("method" + "\n" * (len(lines[0]) - 1 if lines else 0), no_wrap=True)
    columns = [[cut_middle(row["method"], label_width) for row in rows]]
    for name, heading in zip(names, lines, strict=True):
        texts = [value_text(row, name, which) for row in rows]
        width = max(map(len, [*texts, *heading]))  # rich would strip the space in the place of a star
        table.add_column("\n".join(line.rjust(width) for line in heading), no_wrap=True)
        columns.append([text.rjust(width) for text in texts])
    for cells in zip(*columns, strict=True):
        table.add_row(*map(Text, cells))
    return table


def headings(names: Sequence[str]) -> list[list[str]]:
    """The lines of each column's heading: model, data, tuned, seen; without lines that are always empty."""
    columns = [heading_words(name) for name in names]
    models = [column[0] for column in columns]
    for before, column in zip(models, columns[1:], strict=False):
        if column[0] == before:
            column[0] = ""  # a model is named once, above the first of its columns
    used = [line for line in range(4) if any(column[line] for column in columns)]
    return [[f"{column[line]} " for line in used] for column in columns]


def heading_words(name: str) -> list[str]:
    """The parts of a cell's name: model, data, tuned, seen."""
    model, data, _, suffix = parse_cell(name) or Cell(name, "", "", "")
    parts = suffix.split(".")
    return [model, data, "tuned" if "tuned" in parts else "", parts[-1] if parts[-1] != "tuned" else ""]


def value_text(row: dict[str, Any], name: str, which: Which) -> str:
    """A cell's value, with a star if the method's paper reports this cell."""
    cell = row["cells"].get(name)
    if cell is None:
        return "– "
    text = percent(cell[which], cell[f"{which}_std"], cell["partial"])
    return text + ("*" if name in row["reports"] else " ")


def metric_notes(rows: Rows) -> list[str]:
    """The metric of a table, and the papers that report another one."""
    metric = rows[0]["metric"] if rows else None
    if metric is None:
        return [NO_ACCURACY]
    others = [row for row in rows if row["reports"] and metric not in row["reports"]]
    notes = [f"accuracy: {metric}"]
    if any(row["partial"] for row in rows):
        notes.append(PARTIAL)
    return notes + ([f"their papers report another accuracy — {reported_cells(others)}"] if others else [])


def cell_notes(rows: Rows) -> list[str]:
    """The meaning of the marks in the matrix, and the cells that papers report."""
    reported = [row for row in rows if row["reports"]]
    notes = [] if any(row["cells"] for row in rows) else [NO_ACCURACY]
    notes += [f"* the accuracy that its paper reports — {reported_cells(reported)}"] if reported else []
    shown = [cell for row in rows for name, cell in row["cells"].items() if is_shown(name, cell)]
    return notes + ([PARTIAL] if any(cell["partial"] for cell in shown) else [])


def reported_cells(rows: Rows) -> str:
    """The cells that the methods' papers report, and the settings that measure missing cells."""
    groups: dict[tuple[str, ...], list[dict[str, Any]]] = {}
    for row in rows:
        groups.setdefault(tuple(row["reports"]), []).append(row)
    texts = []
    for cells, group in groups.items():
        missing = [row for row in group if not any(cell in row["cells"] for cell in cells)]
        remedy = f" (not measured{measuring_settings(cells[0], group)})" if missing else ""
        methods = ", ".join(dict.fromkeys(row["label"] for row in group))
        texts.append(f"{methods}: {' or '.join(cells)}{remedy}")
    return "; ".join(texts)


def measuring_settings(cell: str, rows: Rows) -> str:
    """The command-line options that measure a missing cell."""
    has_local = any(".local." in name for row in rows for name in row["cells"])
    parts = [part for part in cell.split(".") if part in SETTINGS and not (part == "local" and has_local)]
    options = " ".join(f"--set {SETTINGS[part]}" for part in parts)
    return f"; to measure it: {options}" if parts else ""
