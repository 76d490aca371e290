"""A dataset dealt out, as a table for a terminal and a few lines under it."""

from rich.table import Table

from kedge.report.partition import QUANTILES, Deal, counted, number, rounded

ALL = 40  # up to so many clients, each has a row
ENDS = 5  # else so many from the front and from the back
HEADS = ("client", "samples", "classes", "largest", "share %", "distance", "local test")


def rendered(deal: Deal) -> Table:
    """A row a client, or the first and last few; then the quantiles of every column."""
    table = Table(header_style="bold", box=None, pad_edge=False, padding=(0, 2, 0, 0))
    tested = bool(deal.tests.any())
    for head in HEADS[: 7 if tested else 6]:
        table.add_column(head, justify="right", no_wrap=True)
    shown = list(range(deal.clients))
    if deal.clients > ALL:
        shown = shown[:ENDS] + shown[-ENDS:]
    values = list(zip(*(column.tolist() for column in deal.columns.values()), strict=True))
    for place, client in enumerate(shown):
        if deal.clients > ALL and place == ENDS:
            table.add_row("…", style="dim")
        size, classes, largest, share, distance, test = values[client]
        cells = (number(size), number(classes), str(largest), f"{100 * share:.1f}", f"{distance:.3f}")
        table.add_row(str(client), *cells, *((number(test),) if tested else ()))
    table.add_row()
    columns = {name: deal.summary(name) for name in deal.columns}
    for name in QUANTILES:
        at = {column: values[name] for column, values in columns.items()}
        cells = (
            number(at["samples"]), number(at["classes"]), "", f"{100 * at['largest_share']:.1f}",
            f"{at['distance']:.3f}",
        )  # fmt: skip
        table.add_row(name, *cells, *((number(at["local_test"]),) if tested else ()), style="dim")
    return table


def headline(deal: Deal) -> str:
    """What was dealt, and how."""
    return f"{deal.dataset}, {deal.partition}, seed {deal.seed}"


def amounts(deal: Deal) -> str:
    """How much there is, and what became of it."""
    parts = [
        counted(deal.clients, "client"),
        counted(deal.classes, "class"),
        counted(int(deal.sizes.sum()), "training sample"),
    ]
    if deal.tests.any():
        parts.append(f"{number(deal.tests.sum())} in local tests")
    if deal.left:
        parts.append(f"{number(deal.left)} to nobody")
    return " · ".join(parts)


def verdict(deal: Deal) -> tuple[str, str]:
    """The heterogeneity, and what it is made of."""
    found = deal.heterogeneity
    return (
        f"heterogeneity {rounded(found.value, 3)} (0: as in a random deal, 1: every client holds one class)",
        f"mean distance of a client's classes from the whole's {found.distance:.3f}; "
        f"in a random deal {found.chance:.3f}, with one class each {found.most:.3f}",
    )
