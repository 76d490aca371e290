"""Costs of runs, from their histories: phases, totals, and the cost until an accuracy is reached.

A phase is a sequence of consecutive rounds with one method and one number of trainable parameters.
"""

from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby
from statistics import mean
from typing import Any

History = Sequence[Mapping[str, Any]]
SUMS = ("samples", "updates", "macs", "bytes_down", "bytes_up")


def phases(history: History) -> list[dict[str, Any]]:
    """One row for each phase of a history: rounds, method, trainable parameters and summed costs."""

    def phase_key(line: Mapping[str, Any]) -> tuple[Any, ...]:
        return line["stage"], line["method"], line["cost"]["parameters"]

    rows = []
    for (stage, method, parameters), group in groupby(lines_with_cost(history), phase_key):
        lines = list(group)
        rounds = {"first_round": lines[0]["round"], "last_round": lines[-1]["round"], "rounds": len(lines)}
        row = {"stage": stage, "method": method, **rounds, "parameters": parameters, **cost_sums(lines)}
        rows.append({**row, "macs_per_sample": row["macs"] / row["samples"] if row["samples"] else None})
    return rows


def lines_with_cost(history: History) -> list[Mapping[str, Any]]:
    """The lines that have costs; the last line of a run that diverged has none."""
    return [line for line in history if "cost" in line]


def cost_sums(lines: Iterable[Mapping[str, Any]]) -> dict[str, int]:
    """The summed costs of some lines of a history."""
    listed = list(lines)
    keys = [k for k in (*SUMS, "papers_count") if listed and k in listed[0]["cost"]]
    return {k: sum(line["cost"][k] for line in listed) for k in keys}


def total(history: History, until: int | None = None) -> dict[str, int] | None:
    """The costs of a run up to the round `until`, or of all rounds; None if a round has no costs."""
    done = [
        line for line in history if not line.get("diverged") and (until is None or line["round"] <= until)
    ]
    return cost_sums(done) if done and len(lines_with_cost(done)) == len(done) else None


def seconds(history: History, until: int | None = None) -> float | None:
    """The seconds of a run up to the round `until`, or of all rounds; None if no round has a time."""
    lines = [line for line in history if until is None or line["round"] <= until]
    times = [line["time"]["seconds"] for line in lines if "time" in line]
    return float(sum(times)) if times else None


def mean_seconds(seconds: Sequence[float | None]) -> float | None:
    """The mean over seeds; None if a seed has no times."""
    known = [value for value in seconds if value is not None]
    return mean(known) if known and len(known) == len(seconds) else None


def mean_cost(costs: Sequence[dict[str, int] | None]) -> dict[str, float] | None:
    """The mean over seeds; None if a seed has no costs."""
    known = [cost for cost in costs if cost is not None]
    return {k: mean(cost[k] for cost in known) for k in SUMS} if known and len(known) == len(costs) else None


def efficiency(histories: Sequence[History], accuracy: float | None) -> dict[str, Any]:
    """The mean cost of runs over seeds, and their accuracy per multiply-add and per byte sent."""
    cost = mean_cost([total(history) for history in histories])
    macs, sent = (cost["macs"], cost["bytes_down"] + cost["bytes_up"]) if cost else (0, 0)
    return {
        "cost": cost,
        "accuracy_per_mac": accuracy / macs if accuracy is not None and macs else None,
        "accuracy_per_byte": accuracy / sent if accuracy is not None and sent else None,
    }


def cost_to_target(histories: Sequence[History], reached: Sequence[int | None]) -> dict[str, Any]:
    """Mean rounds, cost and seconds of runs up to the rounds `reached`; None if a run has no such round."""
    pairs = [(history, round) for history, round in zip(histories, reached, strict=True) if round is not None]
    if not pairs or len(pairs) < len(histories):
        return {"rounds_to_target": None, "cost_to_target": None, "seconds_to_target": None}
    return {
        "rounds_to_target": mean(round for _, round in pairs),
        "cost_to_target": mean_cost([total(history, round) for history, round in pairs]),
        "seconds_to_target": mean_seconds([seconds(history, round) for history, round in pairs]),
    }
