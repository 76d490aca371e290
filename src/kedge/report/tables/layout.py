"""Make tables for a terminal, without borders, and divide columns into blocks that fit its width."""

from collections.abc import Callable, Iterator, Sequence

from rich.console import Console
from rich.table import Table

WIDEST = 10_000  # characters; wider than any table


def plain_table(gap: int = 2) -> Table:
    """An empty table without borders, with `gap` spaces between columns."""
    return Table(header_style="bold", box=None, pad_edge=False, padding=(0, gap, 0, 0))


def number_table(first: str, *names: str) -> Table:
    """An empty table of numbers below `names`; the column `first` has texts, which wrap."""
    table = plain_table()
    table.add_column(first, overflow="fold")
    for name in names:
        table.add_column(name, justify="right", no_wrap=True)
    return table


def table_width(table: Table) -> int:
    """The characters that a table needs if no column is shortened."""
    return Console(width=WIDEST).measure(table).maximum


def column_blocks(
    columns: Sequence[str], table: Callable[[Sequence[str]], Table], width: int
) -> Iterator[list[str]]:
    """The columns in consecutive blocks, each as long as its `table` is at most `width` wide."""
    block: list[str] = []
    for column in columns:
        if block and table_width(table([*block, column])) > width:
            yield block
            block = []
        block.append(column)
    if block:
        yield block


def cut_middle(text: str, width: int) -> str:
    """The text; if it is longer than `width`, … replaces its middle."""
    kept = (width - 1) // 2
    return text if len(text) <= width else f"{text[:kept]}…{text[-kept:]}"


def cut_start(text: str, width: int) -> str:
    """The text; if it is longer than `width`, … replaces its start."""
    return text if len(text) <= width else "…" + text[1 - width :]
