"""The audit for a terminal: one row per method, one column per kind of check; formulas; failed checks."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from kedge.report.tables.layout import cut_start, plain_table, table_width


class Layout(NamedTuple):
    """A layout of the table."""

    errors: bool  # whether cells show the largest error
    gap: int
    heading: int  # characters of a column's heading
    name: int  # characters of a method's name


MEANINGS = {  # by kind of check
    "oracle": "numbers computed from the papers' equations, for every step and round",
    "reduction": "settings in which the method equals another method, or SGD by torch.optim",
    "gradient": "a client's gradient, against autograd of the objective and finite differences",
    "quadratic": "the point to which the method converges on quadratics, against a closed form",
    "engines": "clients trained one after another and all at once get the same model",
    "frozen": "leaves that do not train keep every bit",
    "resume": "a run that is stopped and resumed equals the uninterrupted run, bit for bit",
    "value": "the method pickles, compares, hashes, prints its arguments, and modifies nothing",
}
LEGEND = "Cells: number of checks, ✓ if all pass, and the largest error if the table has room; – if none."
LAYOUTS = (  # from wide to narrow
    Layout(True, 2, 9, 60),
    Layout(True, 1, 9, 60),
    Layout(False, 2, 9, 60),
    Layout(False, 1, 9, 60),
    Layout(False, 1, 5, 60),
    Layout(False, 1, 5, 16),
)


def audit_table(methods: Sequence[Mapping[str, Any]], width: int) -> Table:
    """The table in the widest layout that fits into `width` characters."""
    tables = (table_in(layout, methods) for layout in LAYOUTS)
    return next((table for table in tables if table_width(table) <= width), table_in(LAYOUTS[-1], methods))


def table_in(layout: Layout, methods: Sequence[Mapping[str, Any]]) -> Table:
    """The table in one layout."""
    summaries = [summary for method in methods for summary in method["kinds"].values() if summary]
    digits = max(len(str(summary["checks"])) for summary in summaries)
    table = plain_table(layout.gap)
    table.add_column("method", no_wrap=True)
    for kind in methods[0]["kinds"]:
        table.add_column(kind[: layout.heading], no_wrap=True)
    for method in methods:
        name = Text(cut_start(method["method"], layout.name), "" if method["passed"] else "bold red")
        table.add_row(name, *(cell(summary, layout.errors, digits) for summary in method["kinds"].values()))
    return table


def cell(summary: Mapping[str, Any] | None, errors: bool, digits: int) -> Text:
    """The number of checks, whether they pass, and with `errors` the largest error."""
    if summary is None:
        return Text("–".rjust(digits), "dim")
    failed, error = summary["failed"], summary["error"]
    count = f"{failed}/{summary['checks']} ✗" if failed else f"{summary['checks']:>{digits}} ✓"
    text = f"{count} {short_error(error)}" if errors and error is not None else count
    return Text(text, "bold red" if failed else "green")


def short_error(error: float) -> str:
    """An error with one digit."""
    return f"{error:.0e}" if error else "0"


def kind_table(methods: Sequence[Mapping[str, Any]]) -> Table:
    """The meaning of each kind of check that at least one method has."""
    table = plain_table()
    table.add_column("kind", no_wrap=True)
    table.add_column("meaning", overflow="fold")
    for kind in methods[0]["kinds"]:
        if any(method["kinds"][kind] for method in methods):
            table.add_row(kind, Text(MEANINGS[kind], "dim"))
    return table


def formula_table(methods: Sequence[Mapping[str, Any]]) -> Table:
    """The formulas of the methods, each shown once."""
    table = plain_table()
    table.add_column("method", no_wrap=True)
    table.add_column("formula", overflow="fold")
    known: set[str] = set()
    for method in methods:
        new = [part for part in method["formula"].split(" — ") if part and part not in known]
        known |= set(new)
        if new:
            table.add_row(Text(cut_start(method["method"], LAYOUTS[-1].name)), Text(" — ".join(new), "dim"))
    return table


def failures(rows: Sequence[Mapping[str, Any]]) -> Iterator[Text | Padding]:
    """Every failed check with its details."""
    for row in rows:
        if not row["passed"]:
            yield Text(f"\n✗ {row['method']}, {row['kind']}: {row['check']}", "bold red")
            yield Padding(Text(row["detail"]), (0, 0, 0, 2), expand=False)
