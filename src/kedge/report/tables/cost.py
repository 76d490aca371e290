"""Costs as tables for a terminal of 80 columns: the phases of a run, and a comparison of runs."""

from collections.abc import Mapping, Sequence
from typing import Any

from rich.table import Table

from kedge.report.numbers import PREFIXES, with_prefix
from kedge.report.tables.layout import number_table

MAX_PHASES = 24  # shown
UNITS = "k, M, G, T: 10³, 10⁶, 10⁹, 10¹²; MACs: multiply-adds of the clients' training, forward and backward"
RATIOS = "%/…MAC, %/…B: accuracy in % per number of multiply-adds, and per number of bytes sent down and up"


def phase_table(phases: Sequence[Mapping[str, Any]], total: Mapping[str, Any]) -> Table:
    """One row per phase, and their sum."""
    has_papers_count = "papers_count" in total
    heads = ("rounds", "train", "updated", "MACs/sample", "MACs", "down", "up")
    table = number_table(*heads, *(("papers' count",) if has_papers_count else ()))
    staged = len({phase["stage"] for phase in phases}) > 1
    stage = None
    for phase in phases[:MAX_PHASES]:
        if staged and phase["stage"] != stage:
            stage = phase["stage"]
            table.add_row(phase["method"], style="italic")
        table.add_row(*cells(round_range(phase), phase["parameters"], phase))
    if len(phases) > MAX_PHASES:
        table.add_row(f"… {len(phases) - MAX_PHASES} more", style="dim")
    if len(phases) > 1:
        table.add_row(*cells("all", None, total), style="bold")
    return table


def round_range(phase: Mapping[str, Any]) -> str:
    """The rounds of a phase: '5' or '5–9'."""
    first, last = phase["first_round"], phase["last_round"]
    return str(first) if first == last else f"{first}–{last}"


def cells(name: str, parameters: int | None, cost: Mapping[str, Any]) -> list[str]:
    """A row of the table of phases."""
    macs_per_sample = cost["macs"] / cost["samples"] if cost["samples"] else None
    texts = [
        name,
        "" if parameters is None else f"{parameters:,}",
        with_prefix(cost["updates"]),
        with_prefix(macs_per_sample, digits=4),
        with_prefix(cost["macs"]),
        with_prefix(cost["bytes_down"], "B"),
        with_prefix(cost["bytes_up"], "B"),
    ]
    return texts + ([with_prefix(cost["papers_count"], digits=6)] if "papers_count" in cost else [])


def run_table(rows: Sequence[Mapping[str, Any]]) -> Table:
    """The costs of runs, and accuracy per cost."""
    macs, sent = power_of_1000(rows, "accuracy_per_mac"), power_of_1000(rows, "accuracy_per_byte")
    per = (f"%/{PREFIXES[macs]}MAC", f"%/{PREFIXES[sent]}B")
    table = number_table("method", "updated", "MACs", "down", "up", *per)
    for row in rows:
        cost = row["cost"] or dict.fromkeys(("updates", "macs", "bytes_down", "bytes_up"))
        table.add_row(
            row["method"], with_prefix(cost["updates"]), with_prefix(cost["macs"]),
            with_prefix(cost["bytes_down"], "B"), with_prefix(cost["bytes_up"], "B"),
            rate(row["accuracy_per_mac"], macs), rate(row["accuracy_per_byte"], sent),
        )  # fmt: skip
    return table


def target_table(rows: Sequence[Mapping[str, Any]], target: float) -> Table:
    """The costs up to the round that reached the target accuracy."""
    table = number_table(f"to {100 * target:g} %", "rounds", "updated", "MACs", "down", "up", "seconds")
    for row in rows:
        reached, cost = row["rounds_to_target"], row["cost_to_target"]
        if reached is None:
            table.add_row(row["method"], "not reached")
            continue
        cost = cost or dict.fromkeys(("updates", "macs", "bytes_down", "bytes_up"))
        table.add_row(
            row["method"], f"{reached:g}", with_prefix(cost["updates"]), with_prefix(cost["macs"]),
            with_prefix(cost["bytes_down"], "B"), with_prefix(cost["bytes_up"], "B"),
            "–" if row["seconds_to_target"] is None else f"{row['seconds_to_target']:.1f}",
        )  # fmt: skip
    return table


def power_of_1000(rows: Sequence[Mapping[str, Any]], name: str) -> int:
    """The index in PREFIXES of the unit in which the largest ratio in percent is at least 1."""
    largest = max((100 * row[name] for row in rows if row[name]), default=1.0)
    power = 0
    while largest < 1 and power < len(PREFIXES) - 1:
        largest, power = largest * 1000, power + 1
    return power


def rate(share: float | None, power: int) -> str:
    """An accuracy in percent per unit of 1000 to the `power`."""
    return "–" if share is None else f"{100 * share * 1000**power:#.3g}".rstrip(".")


def cost_notes(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """The meaning of the numbers, and the methods without costs."""
    without = [row["method"] for row in rows if row["cost"] is None]
    names = ", ".join(without)
    missing = (
        f"no costs in the history (of an earlier kedge, of a private federation, or without rounds): {names}"
    )
    return [*([UNITS, RATIOS] if len(without) < len(rows) else []), *([missing] if without else [])]
