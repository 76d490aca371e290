"""Format the numbers of a published table and of its measurements as text."""

import re
from collections.abc import Mapping
from typing import Any

from kedge.report.numbers import plural
from kedge.reproduce.claims import Judgment
from kedge.reproduce.measured import Measured, Place
from kedge.reproduce.paper import Entry

NOTHING = "–"
SIGNS = {"held": "✓", "not held": "✗", "within noise": "≈", "not measured": NOTHING}
RULES = (
    "Held: every comparison has the claimed sign, and their mean is significantly above zero "
    "(p < 0.05, one-sided). "
    "Not held: the mean or a single comparison is significantly below zero. "
    "Within noise: neither; what contradicts the claim may be chance."
)
HEADS = ("measured", "seeds", "|difference|", "claims")
HEADS_NOTE = (
    "Measured: how many of the table's numbers have been measured. |difference|: mean absolute difference "
    "from the print, in percentage points. Claims: ✓ held, ✗ not held, ≈ within noise, – not measured."
)


def printed_text(entry: Entry) -> str:
    """The printed number of a place."""
    if entry.value is None:
        return entry.bound or NOTHING
    return number(entry, entry.value) + (f" ± {number(entry, entry.std)}" if entry.std is not None else "")


def measured_text(place: Place, seeds: int) -> str:
    """Mean ± standard deviation of a place, and the number of seeds in parentheses if it is not `seeds`."""
    count = len(place.by_seed)
    if not count:
        return NOTHING
    if place.mean is None:
        failure = "not reached" if place.entry.target is not None else "diverged"
        missing = count - len(place.values)
        text = failure if missing == count else f"{missing}/{count} {failure}"
    else:
        text = number(place.entry, place.mean)
        text += f" ± {number(place.entry, place.std)}" if place.std is not None else ""
    return text if count == seeds else f"{text} ({count})"


def difference_text(place: Place) -> str:
    """Measured minus printed, with its sign."""
    if place.difference is None:
        return NOTHING
    text = number(place.entry, abs(place.difference))
    return text if not any(digit in text for digit in "123456789") else sign(place.difference) + text


def sign(value: float) -> str:
    """The sign of a number."""
    return "−" if value < 0 else "+"


def number(entry: Entry, value: float) -> str:
    """A number in the unit of the print: percent with two decimals, rounds with at most one."""
    if entry.percent:
        return f"{value:.2f}"
    return f"{value:.1f}".removesuffix(".0") if entry.target is not None else f"{value:.4g}"


def summary(row: Mapping[str, Any]) -> str:
    """Number of measured values and mean difference from the print, or the reason why nothing is measured."""
    missing = f" Not measured: {row['unavailable']}" if row["unavailable"] else ""
    if not row["measured"]:
        return missing.strip() or f"Nothing is measured at scale {row['scale']} yet."
    measured = f"{row['measured']} of {row['places']} numbers measured, {seed_range(row)}."
    error = row["mean_absolute_difference"]
    mean = (
        f" Mean absolute difference from the print: {error:.2f} percentage points."
        if error is not None
        else ""
    )
    return measured + mean + (missing if row["measured"] < row["places"] else "")


def verdict_text(judgment: Judgment) -> str:
    """A verdict with its sign."""
    return f"{SIGNS[judgment.verdict]} {judgment.label}"


def most_seeds(measured: Measured) -> int:
    """The most frequent number of seeds of the measured places."""
    counts = [len(place.by_seed) for place in measured.places if place.by_seed]
    return max(counts, key=counts.count, default=0)


def verdict_counts(row: Mapping[str, Any]) -> str:
    """The number of claims with each verdict, by its sign."""
    return ", ".join(f"{SIGNS[verdict]} {count}" for verdict, count in row["verdicts"].items())


def seed_range(row: Mapping[str, Any]) -> str:
    """The number of seeds per value of a table, from the fewest to the most."""
    counts = row["seed_counts"]
    if not counts:
        return ""
    return plural(counts[0], "seed") if len(counts) == 1 else f"{counts[0]} to {counts[-1]} seeds"


def duration(seconds: float) -> str:
    """Seconds in a readable unit: 42 s, 17 min, 3.5 h."""
    if seconds < 100:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 6000 else f"{seconds / 3600:.1f} h"


def paper_of(row: Mapping[str, Any]) -> str:
    """The paper of a table: its source without the number of the table."""
    return re.sub(r",? (Table|Figure|Section)\b.*", "", row["source"])


def overview_cells(row: Mapping[str, Any]) -> list[str]:
    """The values of HEADS: numbers measured, seeds, mean absolute difference in points, verdicts."""
    error = row["mean_absolute_difference"]
    return [
        "unavailable"
        if row["unavailable"] and not row["measured"]
        else f"{row['measured']} of {row['places']}",
        seed_range(row).rpartition(" ")[0] or NOTHING,
        NOTHING if error is None else f"{error:.2f}",
        verdict_counts(row) if row["measured"] and row["verdicts"] else NOTHING,
    ]
