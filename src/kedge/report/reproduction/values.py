"""A published table and its measurements as plain values: for JSON, and for the list of all tables."""

from collections.abc import Iterable, Sequence
from typing import Any

from kedge.reproduce.claims import Judgment
from kedge.reproduce.comparisons import Comparison
from kedge.reproduce.measured import Measured, Place
from kedge.reproduce.records import sitting_seconds


def as_dict(measured: Measured, judgments: Sequence[Judgment]) -> dict[str, Any]:
    """A table and its measurements as plain values for JSON, including the numbers of every seed."""
    paper = measured.paper
    return {
        **overview_row(measured, judgments),
        "metric": paper.metric,
        "printed_runs": paper.runs,
        "notes": list(paper.notes),
        "table": [place_dict(place) for place in measured.places],
        "claims": [claim_dict(judgment) for judgment in judgments],
        "sittings": sittings(measured),
    }


def overview(tables: Iterable[tuple[Measured, Sequence[Judgment]]]) -> list[dict[str, Any]]:
    """One row for each table: how many numbers are measured, and their difference from the print."""
    return [overview_row(measured, judgments) for measured, judgments in tables]


def overview_row(measured: Measured, judgments: Sequence[Judgment]) -> dict[str, Any]:
    """The summary of a table."""
    verdicts = [judgment.verdict for judgment in judgments]
    seconds = sitting_seconds(measured.records)
    return {
        "name": measured.paper.name,
        "title": measured.paper.title,
        "source": measured.paper.source,
        "unavailable": measured.paper.unavailable,
        "scale": measured.scale,
        "places": len(measured.places),
        "measured": sum(bool(place.by_seed) for place in measured.places),
        "runs": len(measured.records),
        "seeds": measured.seeds,
        "seed_counts": sorted({len(place.by_seed) for place in measured.places if place.by_seed}),
        "mean_absolute_difference": measured.mean_absolute_difference,
        "verdicts": {verdict: verdicts.count(verdict) for verdict in dict.fromkeys(verdicts)},
        "seconds": sum(seconds.values()),
        "hardware": sorted({sitting.hardware for sitting in seconds}),
    }


def place_dict(place: Place) -> dict[str, Any]:
    """One number of the table."""
    entry = place.entry
    return {
        "block": entry.block,
        "row": entry.row,
        "column": entry.column,
        "cell": place.cell,
        "metric": entry.metric,
        "at": entry.at,
        "read_at": place.at or entry.at,
        "target": entry.target,
        "percent": entry.percent,
        "printed": entry.value,
        "printed_std": entry.std,
        "printed_bound": entry.bound or None,
        "by_seed": {str(seed): value for seed, value in place.by_seed.items()},
        "mean": place.mean,
        "std": place.std,
        "comparable": place.comparable,
        "difference": place.difference,
    }


def claim_dict(judgment: Judgment) -> dict[str, Any]:
    """A claim, its verdict, and every comparison."""
    test = judgment.test
    return {
        "says": judgment.claim.says,
        "verdict": judgment.verdict,
        "label": judgment.label,
        "evidence": judgment.evidence,
        "test": test and test.name,
        "p": test and test.p,
        "opposite_p": test and test.opposite_p,
        "comparisons": [comparison_dict(comparison) for comparison in judgment.comparisons],
    }


def comparison_dict(comparison: Comparison) -> dict[str, Any]:
    """A comparison; a difference is positive if it agrees with the claim."""
    return {
        "name": comparison.name,
        "unit": comparison.unit,
        "printed": comparison.printed,
        "difference": comparison.difference,
        "diverged": comparison.diverged,
        "by_seed": {str(seed): value for seed, value in comparison.by_seed.items()},
    }


def sittings(measured: Measured) -> list[dict[str, Any]]:
    """The commands that trained the runs, the oldest first."""
    seconds = sitting_seconds(measured.records)
    runs = {sitting: [run for run in measured.records if run.sitting == sitting] for sitting in seconds}
    return [
        {
            "started": sitting.started,
            "command": sitting.command,
            "hardware": sitting.hardware,
            "precisions": sorted({run.precision for run in runs[sitting]}),
            "kedge": sitting.kedge,
            "torch": sitting.torch,
            "seconds": seconds[sitting],
            "runs": len(runs[sitting]),
        }
        for sitting in sorted(seconds, key=lambda sitting: sitting.started)
    ]
