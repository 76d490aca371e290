"""The figures of `kedge plot`, from the histories of runs, and the reason if one cannot be drawn.

Most follow the FedDyn→FedAvg paper: diversity and cosine over the rounds (figures 1b, 1c, 6d), feature
frequency (2), clusters and retained features (3, 5). Others show sorted accuracies of clients, and costs.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from kedge.report.plots.cost import cost_png
from kedge.report.plots.curves import Panel, Points, curves, single
from kedge.report.runs import Run
from kedge.running.folders.folder import read_lines

DRIFT = "no run has drift metrics: set measure.drift = true"
FEATURES = "no run has feature metrics: set measure.features_every to a number of rounds"
DIVERSITY = Panel(("probe.diversity", "drift.diversity"), "Σ‖Δ_k‖² / ‖Σ Δ_k‖²", log=True)
LOCAL = Panel(("drift.local.diversity",), "Σ‖g_k‖² / ‖Σ g_k‖² of the clients' local drifts", log=True)
ROUNDS = Panel(
    ("probe.cosine.rounds", "drift.cosine.rounds"), "cos of a client's update and its previous one"
)
CLIENTS = Panel(("probe.cosine.clients", "drift.cosine.clients"), "mean cos of two clients' updates")
NORM = Panel(("drift.norm",), "mean ‖Δ_k‖", log=True)
MOVED = Panel(("drift.moved",), "‖mean Δ_k‖", log=True)
SHIFT = Panel(("drift.u",), "‖h‖/α, the server's shift of the mean", log=True)
C_T = Panel(("drift.spread", "drift.c"), "C_t, estimated", log=True)
CLUSTERS = Panel(("features.clusters",), "feature clusters of all models")
KEPT = Panel(("features.retained.local",), "features of the global model in local models")
NEXT = Panel(("features.retained.next",), "… in the next global model")
BEFORE = Panel(("features.retained.average",), "… in the plain average (before h)")
ACCURACIES = (
    "personal.local.accuracy",
    "distributed.local.accuracy",
)  # of clients; the first one available is used


@dataclass(frozen=True)
class Figure:
    """A figure: its name, the function that draws it, and the reason if it returns None."""

    name: str
    draw: Callable[[Sequence[Run]], bytes | None]
    missing: str


def by_unit(prefix: str, label: str, runs: Sequence[Run]) -> bytes | None:
    """A plot of a metric's last value by unit."""
    x_label = "unit, from the input to the head"
    return single(runs, partial(last_by_unit, prefix), x_label, label, f"{prefix}, last round with a value")


def last_by_unit(prefix: str, run: Run) -> Points:
    """Unit number -> last value of prefix.unit0, prefix.unit1, …"""
    metrics = {k for line in run.history for k in line if k.startswith(f"{prefix}.unit")}
    return {
        float(name.removeprefix(f"{prefix}.unit")): points[-1][1]
        for name in metrics
        if (points := run.curve(name))
    }


def frequency(runs: Sequence[Run]) -> bytes | None:
    """A plot of the number of clusters that occur in one model, in two, …, at the end of each run."""
    x_label = "models with the cluster"
    return single(runs, last_frequency, x_label, "clusters", "features.frequency, last measurement")


def last_frequency(run: Run) -> Points:
    """Number of models -> number of clusters that occur in that many models."""
    measured: list[Any] = [
        entry["features.frequency"] for entry in run.history if "features.frequency" in entry
    ]
    return {float(models): float(count) for models, count in enumerate(measured[-1], 1)} if measured else {}


def sorted_clients(runs: Sequence[Run]) -> bytes | None:
    """A plot of every client's accuracy at the last evaluation, best client first."""
    metric = next((m for m in ACCURACIES if any(m in last_clients(run) for run in runs)), None)
    if metric is None:
        return None
    y_label, title = "accuracy on the client's own test, %", f"{metric}, last evaluation"
    return single(runs, partial(ranked, metric), "clients, best first", y_label, title)


def last_clients(run: Run) -> dict[str, Any]:
    """The last line of a run's clients.jsonl, or {}."""
    file = run.folder / "clients.jsonl"
    lines = read_lines(file) if file.is_file() else []
    return lines[-1] if lines else {}


def ranked(metric: str, run: Run) -> Points:
    """Rank -> accuracy in percent, best first; clients without a test are left out."""
    values = [value for value in last_clients(run).get(metric, []) if value is not None]
    return {float(rank): 100 * value for rank, value in enumerate(sorted(values, reverse=True), 1)}


FIGURES = (
    Figure("diversity", partial(curves, (DIVERSITY, LOCAL)), DRIFT),
    Figure("diversity-units", partial(by_unit, "drift.diversity", DIVERSITY.label), DRIFT),
    Figure("cosine", partial(curves, (ROUNDS, CLIENTS)), DRIFT),
    Figure("norms", partial(curves, (NORM, MOVED)), DRIFT),
    Figure("shift", partial(curves, (SHIFT, C_T)), "no run has these metrics: only FedDyn does"),
    Figure("clusters", partial(curves, (CLUSTERS,)), FEATURES),
    Figure("frequency", frequency, FEATURES),
    Figure("retained", partial(curves, (KEPT, NEXT, BEFORE)), FEATURES),
    Figure(
        "similarity", partial(by_unit, "features.cka.clients", "mean linear CKA of two clients"), FEATURES
    ),
    Figure(
        "clients", sorted_clients, "no run has local tests: set evaluation.local_test, or evaluation.local"
    ),
    Figure("cost", cost_png, "no history has costs: an earlier version of kedge wrote them"),
)
