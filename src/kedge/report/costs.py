"""What runs cost, from the lines of a history: phases, totals, and what it took to reach an accuracy.

A phase is a stretch of rounds of one method in which equally many parameters train.
"""

from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby
from statistics import mean
from typing import Any

History = Sequence[Mapping[str, Any]]
SUMS = ("samples", "updates", "macs", "bytes_down", "bytes_up")


def phases(history: History) -> list[dict[str, Any]]:
    """The phases of a history: which rounds, what trains, the costs of all its rounds together."""

    def kind(line: Mapping[str, Any]) -> tuple[Any, ...]:
        return line["stage"], line["method"], line["cost"]["parameters"]

    found = []
    for (stage, method, parameters), lines in groupby(counted(history), kind):
        own = list(lines)
        place = {"first_round": own[0]["round"], "last_round": own[-1]["round"], "rounds": len(own)}
        row = {"stage": stage, "method": method, **place, "parameters": parameters, **summed(own)}
        found.append({**row, "macs_per_sample": row["macs"] / row["samples"] if row["samples"] else None})
    return found


def counted(history: History) -> list[Mapping[str, Any]]:
    """The lines of rounds that were done and counted; a run that diverged has a last line without costs."""
    return [line for line in history if "cost" in line]


def summed(lines: Iterable[Mapping[str, Any]]) -> dict[str, int]:
    """The costs of some rounds together."""
    own = list(lines)
    keys = [k for k in (*SUMS, "papers_count") if own and k in own[0]["cost"]]
    return {k: sum(line["cost"][k] for line in own) for k in keys}


def total(history: History, until: int | None = None) -> dict[str, int] | None:
    """The costs of a run, or of its rounds up to one; None where some of them were never counted."""
    done = [
        line for line in history if not line.get("diverged") and (until is None or line["round"] <= until)
    ]
    return summed(done) if done and len(counted(done)) == len(done) else None


def seconds(history: History, until: int | None = None) -> float:
    """The time that a run took, or its rounds up to one."""
    lines = [line for line in history if until is None or line["round"] <= until]
    return float(sum(line["time"]["seconds"] for line in lines if "time" in line))


def together(costs: Sequence[dict[str, int] | None]) -> dict[str, float] | None:
    """The mean over seeds; None where one is missing."""
    there = [cost for cost in costs if cost is not None]
    return {k: mean(cost[k] for cost in there) for k in SUMS} if there and len(there) == len(costs) else None


def price(histories: Sequence[History], accuracy: float | None) -> dict[str, Any]:
    """What runs that differ only in the seed cost, and their accuracy per multiply-add and per byte sent."""
    cost = together([total(history) for history in histories])
    macs, sent = (cost["macs"], cost["bytes_down"] + cost["bytes_up"]) if cost else (0, 0)
    return {
        "cost": cost,
        "accuracy_per_mac": accuracy / macs if accuracy is not None and macs else None,
        "accuracy_per_byte": accuracy / sent if accuracy is not None and sent else None,
    }


def price_of_target(histories: Sequence[History], reached: Sequence[int | None]) -> dict[str, Any]:
    """What it took up to the rounds in which the runs reached a target; None where one never did."""
    pairs = [(history, at) for history, at in zip(histories, reached, strict=True) if at is not None]
    if not pairs or len(pairs) < len(histories):
        return {"rounds_to_target": None, "cost_to_target": None, "seconds_to_target": None}
    return {
        "rounds_to_target": mean(at for _, at in pairs),
        "cost_to_target": together([total(history, at) for history, at in pairs]),
        "seconds_to_target": mean(seconds(history, at) for history, at in pairs),
    }
