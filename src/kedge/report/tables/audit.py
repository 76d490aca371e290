"""The audit's table for a terminal: one row a method, one column a kind of check."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from rich.padding import Padding
from rich.text import Text


class Layout(NamedTuple):
    """How wide the table may be."""

    errors: bool  # whether cells show the largest error
    gap: int
    heading: int  # letters
    name: int


LAYOUTS = (
    Layout(True, 2, 9, 60),
    Layout(True, 1, 9, 60),
    Layout(False, 2, 9, 60),
    Layout(False, 1, 9, 60),
    Layout(False, 1, 5, 60),
    Layout(False, 1, 5, 16),
)


def rendered(methods: Sequence[Mapping[str, Any]], width: int) -> Iterator[Text]:
    """The table's lines: the widest layout that fits; formulas stand under the names, each once."""
    kinds = list(methods[0]["kinds"])
    found = [found for method in methods for found in method["kinds"].values() if found]
    digits = max(len(str(one["checks"])) for one in found)
    for layout in LAYOUTS:
        rows = [[cell(method["kinds"][kind], layout.errors, digits) for kind in kinds] for method in methods]
        headings = [kind[: layout.heading] for kind in kinds]
        wide = [max(map(len, column)) for column in zip(headings, *rows, strict=True)]
        names = [ending(method["method"], layout.name) for method in methods]
        first = max(map(len, ["method", *names]))
        if first + sum(wide) + layout.gap * len(wide) <= width:
            break
    space = " " * layout.gap
    yield joined([Text("method".ljust(first)), *aligned(headings, wide)], space, "bold")
    told: set[str] = set()
    for method, name, cells in zip(methods, names, rows, strict=True):
        title = Text(name.ljust(first), "" if method["passed"] else "bold red")
        yield joined([title, *aligned(cells, wide)], space)
        new = [part for part in method["formula"].split(" — ") if part and part not in told]
        told |= set(new)
        if new:
            yield Text(shortened("  " + " — ".join(new), width), "dim")


def cell(found: Mapping[str, Any] | None, errors: bool, digits: int) -> Text:
    """How many checks, whether they pass, and the largest error."""
    if found is None:
        return Text("–".rjust(digits), "dim")
    failed, error = found["failed"], found["error"]
    count = f"{failed}/{found['checks']} ✗" if failed else f"{found['checks']:>{digits}} ✓"
    return Text(f"{count} {short(error)}" if errors and error is not None else count, colored(found))


def colored(found: Mapping[str, Any]) -> str:
    """Green where all pass."""
    return "bold red" if found["failed"] else "green"


def short(error: float) -> str:
    """An error in few letters."""
    return f"{error:.0e}" if error else "0"


def shortened(text: str, width: int) -> str:
    """The text, cut to a width."""
    return text if len(text) <= width else text[: width - 1] + "…"


def ending(text: str, width: int) -> str:
    """The end of a text: it tells methods of one file apart."""
    return text if len(text) <= width else "…" + text[1 - width :]


def aligned(texts: Sequence[str | Text], wide: Sequence[int]) -> list[Text]:
    """Each filled up to its column's width."""
    filled = []
    for text, width in zip(texts, wide, strict=True):
        one = Text(text) if isinstance(text, str) else text.copy()
        one.pad_right(width - len(one))
        filled.append(one)
    return filled


def joined(texts: Sequence[Text], space: str, style: str = "") -> Text:
    """One line."""
    line = Text(space).join(texts)
    line.stylize(style)
    line.rstrip()
    return line


def failures(rows: Sequence[Mapping[str, Any]]) -> Iterator[Text | Padding]:
    """Every check that fails, with its detail."""
    for row in rows:
        if not row["passed"]:
            yield Text(f"\n✗ {row['method']}, {row['kind']}: {row['check']}", "bold red")
            yield Padding(Text(row["detail"]), (0, 0, 0, 2), expand=False)
