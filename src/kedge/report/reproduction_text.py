"""The numbers of a published table and of its measurements as text, and the notes that explain them."""

from collections.abc import Mapping
from typing import Any

from kedge.reproduce.measured import FULL, Measured, Place
from kedge.reproduce.paper import Entry

NOTHING = "–"
RULES = (
    "Held: every comparison has the claimed sign, and their mean is significantly above zero "
    "(p < 0.05, one-sided). "
    "Not held: the mean or a single comparison is significantly below zero. "
    "Within noise: the data neither confirm nor contradict the claim."
)


def printed_text(entry: Entry) -> str:
    """What the paper printed in a place."""
    if entry.value is None:
        return entry.bound or NOTHING
    return number(entry, entry.value) + (f" ± {number(entry, entry.std)}" if entry.std is not None else "")


def measured_text(place: Place, seeds: int) -> str:
    """Mean ± standard deviation; the number of seeds in parentheses where it is not `seeds`."""
    count = len(place.by_seed)
    if not count:
        return NOTHING
    if place.mean is None:
        failure = "not reached" if place.entry.target is not None else "diverged"
        missing = count - len(place.values)
        return failure if missing == count else f"{missing}/{count} {failure}"
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
    """How much of a table is measured, and how far it is from the print."""
    if row["unavailable"]:
        return f"Cannot be measured here: {row['unavailable']}"
    if not row["measured"]:
        return f"Nothing is measured at scale {row['scale']} yet."
    told = f"{row['measured']} of {row['places']} numbers measured, {counted(len(row['seeds']), 'seed')}"
    far = row["mean_absolute_difference"]
    return told + ("." if far is None else f"; mean absolute difference to the print {far:.2f} points.")


def reading_notes(measured: Measured) -> list[str]:
    """How the numbers are read from the runs, and where they cannot be compared with the print."""
    ways = dict.fromkeys(way(entry) for entry in measured.paper.entries)
    notes = [f"Read: {'; '.join(ways)}."]
    if measured.paper.runs:
        notes.append(f"The paper averages {counted(measured.paper.runs, 'run')}.")
    if measured.scale != FULL:
        notes.append(
            f"Scale {measured.scale}: the runs are shorter than the paper's, "
            "and so are not expected to meet the print."
        )
    moved = dict.fromkeys((place.entry.at, place.at) for place in measured.places if place.at)
    notes += [f"Round {at} of the paper is {moment(read)} of these runs." for at, read in moved]
    if any(place.by_seed and not place.comparable for place in measured.places):
        notes.append("Numbers of rounds have no difference at this scale.")
    return notes


def way(entry: Entry) -> str:
    """How a number is read from a history."""
    if entry.target is not None:
        target = f"{100 * entry.target:g} %" if "accuracy" in entry.metric else f"{entry.target:g}"
        return f"the first round in which {entry.metric} reaches {target}"
    return f"{entry.metric} in {moment(entry.at)}"


def moment(at: str) -> str:
    """A round in words."""
    return f"round {at}" if at.isdigit() else f"the {at} round"


def counted(count: int, noun: str) -> str:
    """A number of things."""
    return f"{count} {noun}{'s' * (count != 1)}"


def most_seeds(measured: Measured) -> int:
    """The number of seeds of most places that have any."""
    counts = [len(place.by_seed) for place in measured.places if place.by_seed]
    return max(counts, key=counts.count, default=0)


def spread_notes(measured: Measured, seeds: int) -> list[str]:
    """What ± and a number in parentheses mean, where they occur."""
    counts = {len(place.by_seed) for place in measured.places if place.by_seed}
    notes = [f"±: standard deviation over {counted(seeds, 'seed')}."] if seeds > 1 else []
    return notes + (["(n): another number of seeds."] if len(counts) > 1 else [])


def duration(seconds: float) -> str:
    """Seconds as a person says them: 42 s, 17 min, 3.5 h."""
    if seconds < 100:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 6000 else f"{seconds / 3600:.1f} h"


def overview_cells(row: Mapping[str, Any]) -> list[str]:
    """Numbers measured, seeds, mean absolute difference in points, claims held."""
    off = row["mean_absolute_difference"]
    count = sum(row["verdicts"].values())
    return [
        "unavailable" if row["unavailable"] else f"{row['measured']} of {row['places']}",
        str(len(row["seeds"])) if row["seeds"] else "–",
        "–" if off is None else f"{off:.2f}",
        f"{row['verdicts'].get('held', 0)} of {count}" if count and row["measured"] else "–",
    ]
