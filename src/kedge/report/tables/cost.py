"""Costs as tables for a terminal of eighty columns: a run's phases, and runs beside each other."""

from collections.abc import Mapping, Sequence
from typing import Any

from rich.table import Table

from kedge.report.numbers import PREFIXES, with_prefix

MOST = 24  # phases that are shown
WHAT = "k, M, G, T: 10³, 10⁶, 10⁹, 10¹²; MACs: multiply-adds of the clients' training, forward and backward"
RATIOS = "%/…MAC, %/…B: accuracy in % for so many multiply-adds, for so many bytes sent down and up"


def empty(*columns: str) -> Table:
    """A table of numbers, with texts in its first column."""
    table = Table(header_style="bold", box=None, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column(columns[0], overflow="fold")
    for name in columns[1:]:
        table.add_column(name, justify="right", no_wrap=True)
    return table


def phase_table(phases: Sequence[Mapping[str, Any]], total: Mapping[str, Any]) -> Table:
    """A row a phase, and their sum."""
    counted = "papers_count" in total
    heads = ("rounds", "train", "updated", "MACs/sample", "MACs", "down", "up")
    table = empty(*heads, *(("papers' count",) if counted else ()))
    staged = len({phase["stage"] for phase in phases}) > 1
    stage = None
    for phase in phases[:MOST]:
        if staged and phase["stage"] != stage:
            stage = phase["stage"]
            table.add_row(phase["method"], style="italic")
        table.add_row(*cells(span(phase), phase["parameters"], phase))
    if len(phases) > MOST:
        table.add_row(f"… {len(phases) - MOST} more", style="dim")
    if len(phases) > 1:
        table.add_row(*cells("all", None, total), style="bold")
    return table


def span(phase: Mapping[str, Any]) -> str:
    """The rounds of a phase."""
    first, last = phase["first_round"], phase["last_round"]
    return str(first) if first == last else f"{first}–{last}"


def cells(name: str, parameters: int | None, cost: Mapping[str, Any]) -> list[str]:
    """A row of the phases' table."""
    each = cost["macs"] / cost["samples"] if cost["samples"] else None
    found = [
        name,
        "" if parameters is None else f"{parameters:,}",
        with_prefix(cost["updates"]),
        with_prefix(each, digits=4),
    ]
    found += [
        with_prefix(cost["macs"]),
        with_prefix(cost["bytes_down"], "B"),
        with_prefix(cost["bytes_up"], "B"),
    ]
    return found + ([with_prefix(cost["papers_count"], digits=6)] if "papers_count" in cost else [])


def run_table(rows: Sequence[Mapping[str, Any]]) -> Table:
    """What runs cost, and their accuracy for it."""
    macs, sent = scale(rows, "accuracy_per_mac"), scale(rows, "accuracy_per_byte")
    per = (f"%/{PREFIXES[macs]}MAC", f"%/{PREFIXES[sent]}B")
    table = empty("method", "updated", "MACs", "down", "up", *per)
    for row in rows:
        cost = row["cost"] or dict.fromkeys(("updates", "macs", "bytes_down", "bytes_up"))
        table.add_row(
            row["method"], with_prefix(cost["updates"]), with_prefix(cost["macs"]),
            with_prefix(cost["bytes_down"], "B"), with_prefix(cost["bytes_up"], "B"),
            rate(row["accuracy_per_mac"], macs), rate(row["accuracy_per_byte"], sent),
        )  # fmt: skip
    return table


def target_table(rows: Sequence[Mapping[str, Any]], target: float) -> Table:
    """What it took to reach a target."""
    table = empty(f"to {100 * target:g} %", "rounds", "updated", "MACs", "down", "up", "seconds")
    for row in rows:
        reached, cost = row["rounds_to_target"], row["cost_to_target"]
        if reached is None:
            table.add_row(row["method"], "not reached")
            continue
        cost = cost or dict.fromkeys(("updates", "macs", "bytes_down", "bytes_up"))
        table.add_row(
            row["method"], f"{reached:g}", with_prefix(cost["updates"]), with_prefix(cost["macs"]),
            with_prefix(cost["bytes_down"], "B"), with_prefix(cost["bytes_up"], "B"),
            f"{row['seconds_to_target']:.1f}",
        )  # fmt: skip
    return table


def scale(rows: Sequence[Mapping[str, Any]], name: str) -> int:
    """The prefix of the unit in which the largest ratio, in percent, is between 1 and 1000."""
    largest = max((100 * row[name] for row in rows if row[name]), default=1.0)
    power = 0
    while largest < 1 and power < len(PREFIXES) - 1:
        largest, power = largest * 1000, power + 1
    return power


def rate(share: float | None, power: int) -> str:
    """An accuracy in percent for a unit of that power of a thousand."""
    return "–" if share is None else f"{100 * share * 1000**power:#.3g}".rstrip(".")


def cost_notes(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """What the numbers mean, and whose are missing."""
    without = [row["method"] for row in rows if row["cost"] is None]
    missing = f"costs are not in the history (rounds of an earlier kedge, or none done): {', '.join(without)}"
    return [*([WHAT, RATIOS] if len(without) < len(rows) else []), *([missing] if without else [])]
