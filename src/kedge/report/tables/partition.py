"""A partition as a table for a terminal, and the lines below it."""

from rich.table import Table

from kedge.report.numbers import fixed, plural, with_commas
from kedge.report.partition import QUANTILES, PartitionStatistics
from kedge.report.tables.layout import plain_table

ALL = 40  # with more clients, only the first and the last few have a row
ENDS = 5  # rows at each end
HEADS = ("client", "samples", "classes", "largest", "share %", "distance", "local test")


def partition_table(partition: PartitionStatistics) -> Table:
    """One row per client, or the first and last few; then the quantiles of every column."""
    table = plain_table()
    tested = bool(partition.tests.any())
    for head in HEADS[: 7 if tested else 6]:
        table.add_column(head, justify="right", no_wrap=True)
    shown = list(range(partition.clients))
    if partition.clients > ALL:
        shown = shown[:ENDS] + shown[-ENDS:]
    values = list(zip(*(column.tolist() for column in partition.columns.values()), strict=True))
    for number, client in enumerate(shown):
        if partition.clients > ALL and number == ENDS:
            table.add_row("…", style="dim")
        size, classes, largest, share, distance, test = values[client]
        cells = (
            with_commas(size),
            with_commas(classes),
            str(largest),
            f"{100 * share:.1f}",
            f"{distance:.3f}",
        )
        table.add_row(str(client), *cells, *((with_commas(test),) if tested else ()))
    table.add_row()
    columns = {name: partition.quantiles(name) for name in partition.columns}
    for name in QUANTILES:
        row = {column: values[name] for column, values in columns.items()}
        cells = (
            with_commas(row["samples"]), with_commas(row["classes"]), "", f"{100 * row['largest_share']:.1f}",
            f"{row['distance']:.3f}",
        )  # fmt: skip
        table.add_row(name, *cells, *((with_commas(row["local_test"]),) if tested else ()), style="dim")
    return table


def headline(partition: PartitionStatistics) -> str:
    """Dataset, partition and seed."""
    return f"{partition.name}, seed {partition.seed}"


def amounts(partition: PartitionStatistics) -> str:
    """Numbers of clients, classes and samples."""
    parts = [
        plural(partition.clients, "client"),
        plural(partition.classes, "class"),
        plural(int(partition.sizes.sum()), "training sample"),
    ]
    if partition.tests.any():
        parts.append(f"{with_commas(partition.tests.sum())} in local tests")
    if partition.unassigned:
        parts.append(f"{with_commas(partition.unassigned)} unassigned")
    return " · ".join(parts)


def verdict(partition: PartitionStatistics) -> tuple[str, str]:
    """The heterogeneity, and the distances it is computed from."""
    value, distance, chance, most = partition.heterogeneity
    return (
        f"heterogeneity {fixed(value, 3)} (0: random partition, 1: one class per client)",
        f"mean distance of clients' classes from the overall distribution {distance:.3f}; "
        f"random partition {chance:.3f}, one class per client {most:.3f}",
    )
