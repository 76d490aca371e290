"""The evaluation matrix of runs for a terminal: one row a group of runs, one column a cell; and the notes."""

from collections.abc import Iterator, Sequence
from typing import Any, Literal

from rich.text import Text

from kedge.measure.cells import Cell, matrix_order, parse_cell
from kedge.report.tables.comparison import percent

Rows = Sequence[dict[str, Any]]
GAP = 2
NOTHING = "no accuracy was measured: the runs have no test data, or no round yet"
PARTIAL = "in parentheses: not every run has it in its last evaluation"
WAYS = {  # how to have a cell measured, by a part of its name
    "all": "evaluation.all=true",
    "tuned": "evaluation.tune=all",
    "local": "evaluation.local_test=0.2",
}


def rendered(rows: Rows, width: int, which: Literal["last", "best"] = "last") -> Iterator[Text]:
    """The matrix, one block of lines below the other where it is too wide."""
    names = matrix_order(name for row in rows for name, cell in row["cells"].items() if apparent(name, cell))
    labels = [shortened(row["method"], width // 2) for row in rows]
    first = max(map(len, ["method", *labels]))
    for number, block in enumerate(blocks(rows, names, which, width - first)):
        if number:
            yield Text()
        for line, heading in enumerate(headings(block)):
            yield Text(("method" if not line else "").ljust(first) + heading, "bold")
        for row, label in zip(rows, labels, strict=True):
            cells = [value(row, name, which).rjust(wide) for name, wide in block]
            yield Text((label.ljust(first) + "".join(" " * (GAP - 1) + cell for cell in cells)).rstrip())


def apparent(name: str, cell: dict[str, Any]) -> bool:
    """Whether it is worth a column: seen and unseen clients only while there are unseen ones at the end."""
    return not (cell["partial"] and name.endswith("seen"))


def blocks(rows: Rows, names: Sequence[str], which: str, room: int) -> Iterator[list[tuple[str, int]]]:
    """The columns, with their widths, that fit side by side."""
    block: list[tuple[str, int]] = []
    for name in names:
        model, *rest = words(name)
        wide = max(
            len(text) for text in [*(value(row, name, which) for row in rows), *(f"{w} " for w in rest)]
        )
        named = max(wide, len(model) + 1)  # if the model's name stands over this column
        follows = bool(block) and words(block[-1][0])[0] == model
        if block and sum(w + GAP - 1 for _, w in block) + (wide if follows else named) + GAP - 1 > room:
            yield block
            block, follows = [], False
        block.append((name, wide if follows else named))
    yield block


def words(name: str) -> list[str]:
    """A cell's name as the lines of a heading: model, data, tuned, seen."""
    model, data, _, suffix = parse_cell(name) or Cell(name, "", "", "")
    parts = suffix.split(".")
    return [model, data, "tuned" if "tuned" in parts else "", parts[-1] if parts[-1] != "tuned" else ""]


def headings(block: Sequence[tuple[str, int]]) -> Iterator[str]:
    """The lines over the columns; a model is named once over its own."""
    above = [None, *(words(name)[0] for name, _ in block)]
    for line in range(4):
        texts = [words(name)[line] for name, _ in block]
        if line == 0:
            texts = ["" if text == before else text for text, before in zip(texts, above, strict=False)]
        if any(texts):
            cells = [f"{text} ".rjust(wide) for text, (_, wide) in zip(texts, block, strict=True)]
            yield "".join(" " * (GAP - 1) + cell for cell in cells).rstrip()


def value(row: dict[str, Any], name: str, which: str) -> str:
    """A cell's value, with a star where it is the one that the method's paper reports."""
    found = row["cells"].get(name)
    if found is None:
        return "– "
    text = percent(found[which], found[f"{which}_std"], found["partial"])
    return text + ("*" if name in row["reports"] else " ")


def shortened(text: str, width: int) -> str:
    """The text, with a gap in its middle where it is longer than the width."""
    kept = (width - 1) // 2
    return text if len(text) <= width else f"{text[:kept]}…{text[-kept:]}"


def metric_notes(rows: Rows) -> list[str]:
    """What a table of one metric shows, and which papers report another."""
    metric = rows[0]["metric"] if rows else None
    if metric is None:
        return [NOTHING]
    others = [row for row in rows if row["reports"] and metric not in row["reports"]]
    notes = [f"accuracy: {metric}"]
    if any(row["partial"] for row in rows):
        notes.append(PARTIAL)
    return notes + ([f"their papers report another cell — {papers(others)}"] if others else [])


def cell_notes(rows: Rows) -> list[str]:
    """What the marks of the matrix mean, and which cells papers report."""
    reported = [row for row in rows if row["reports"]]
    notes = [] if any(row["cells"] for row in rows) else [NOTHING]
    notes += [f"* the cell its paper reports — {papers(reported)}"] if reported else []
    shown = [cell for row in rows for name, cell in row["cells"].items() if apparent(name, cell)]
    return notes + ([PARTIAL] if any(cell["partial"] for cell in shown) else [])


def papers(rows: Rows) -> str:
    """Methods by the cells their papers report, and how to measure what is missing."""
    groups: dict[tuple[str, ...], list[dict[str, Any]]] = {}
    for row in rows:
        groups.setdefault(tuple(row["reports"]), []).append(row)
    told = []
    for cells, members in groups.items():
        missing = [row for row in members if not any(cell in row["cells"] for cell in cells)]
        way = f" (not measured{how(cells[0], members)})" if missing else ""
        told.append(f"{', '.join(dict.fromkeys(row['label'] for row in members))}: {' or '.join(cells)}{way}")
    return "; ".join(told)


def how(cell: str, rows: Rows) -> str:
    """The settings with which a missing cell is measured."""
    local = any(".local." in name for row in rows for name in row["cells"])
    parts = [part for part in cell.split(".") if part in WAYS and not (part == "local" and local)]
    return "".join(f", --set {WAYS[part]}" for part in parts)
