"""The figures of the diagnostics, from the histories of runs alone, and why one is left out.

They follow FedDyn→FedAvg's figures: diversity and cosine over the rounds (1b, 1c, 6d), feature frequency (2),
clusters and retained features (3, 5); and clients' accuracies, sorted.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from kedge.report.plots.cost import pictured
from kedge.report.plots.curves import Panel, Points, curves, single
from kedge.report.runs import Run
from kedge.running.folders.folder import read_lines

DRIFT = "no run has them: set measure.drift = true"
FEATURES = "no run has them: set measure.features_every to a number of rounds"
DIVERSITY = Panel(("probe.diversity", "drift.diversity"), "Σ‖Δ_k‖² / ‖Σ Δ_k‖²", log=True)
LOCAL = Panel(("drift.local.diversity",), "Σ‖g_k‖² / ‖Σ g_k‖² of the clients' local drifts", log=True)
ROUNDS = Panel(("probe.cosine.rounds", "drift.cosine.rounds"), "cos of a client's update and its last before")
CLIENTS = Panel(("probe.cosine.clients", "drift.cosine.clients"), "mean cos of two clients' updates")
NORM = Panel(("drift.norm",), "mean ‖Δ_k‖", log=True)
MOVED = Panel(("drift.moved",), "‖mean Δ_k‖", log=True)
SHIFT = Panel(("drift.u",), "‖h‖/α: how far the server moves the mean", log=True)
C_T = Panel(("drift.spread", "drift.c"), "C_t, estimated", log=True)
CLUSTERS = Panel(("features.clusters",), "feature clusters of all models")
KEPT = Panel(("features.retained.local",), "features of the global model that local ones have")
NEXT = Panel(("features.retained.next",), "… that the next global model has")
BEFORE = Panel(("features.retained.average",), "… that the plain average has (before h)")
ACCURACIES = ("personal.local.accuracy", "distributed.local.accuracy")  # of clients; the first there is


@dataclass(frozen=True)
class Figure:
    """A figure by name: how it is drawn, and what to say where nothing is there to draw."""

    name: str
    draw: Callable[[Sequence[Run]], bytes | None]
    missing: str


def by_unit(prefix: str, says: str, runs: Sequence[Run]) -> bytes | None:
    """A metric's last value, unit by unit."""
    across = "unit, from the input to the head"
    return single(runs, partial(last_by_unit, prefix), across, says, f"{prefix}, last round that has it")


def last_by_unit(prefix: str, run: Run) -> Points:
    """The last values of prefix.unit0, prefix.unit1, …"""
    found = {k for entry in run.history for k in entry if k.startswith(f"{prefix}.unit")}
    return {
        float(name.removeprefix(f"{prefix}.unit")): points[-1][1]
        for name in found
        if (points := run.curve(name))
    }


def frequency(runs: Sequence[Run]) -> bytes | None:
    """How many clusters occur in one model, in two, …: the last look of each run."""
    across = "models that a cluster occurs in"
    return single(runs, last_frequency, across, "clusters", "features.frequency, last look")


def last_frequency(run: Run) -> Points:
    """Number of models -> clusters that occur in so many."""
    looks: list[Any] = [entry["features.frequency"] for entry in run.history if "features.frequency" in entry]
    return {float(models): float(count) for models, count in enumerate(looks[-1], 1)} if looks else {}


def sorted_clients(runs: Sequence[Run]) -> bytes | None:
    """Every client's accuracy at the last evaluation, best client first."""
    metric = next((m for m in ACCURACIES if any(m in last_clients(run) for run in runs)), None)
    if metric is None:
        return None
    up, title = "accuracy on the client's own test, %", f"{metric}, last evaluation"
    return single(runs, partial(ranked, metric), "clients, best first", up, title)


def last_clients(run: Run) -> dict[str, Any]:
    """The last line of a run's clients.jsonl; {} where there is none."""
    file = run.folder / "clients.jsonl"
    lines = read_lines(file) if file.is_file() else []
    return lines[-1] if lines else {}


def ranked(metric: str, run: Run) -> Points:
    """Place -> accuracy in percent, from the best down; clients without a test are left out."""
    values = [one for one in last_clients(run).get(metric, []) if one is not None]
    return {float(place): 100 * value for place, value in enumerate(sorted(values, reverse=True), 1)}


FIGURES = (
    Figure("diversity", partial(curves, (DIVERSITY, LOCAL)), DRIFT),
    Figure("diversity-units", partial(by_unit, "drift.diversity", DIVERSITY.says), DRIFT),
    Figure("cosine", partial(curves, (ROUNDS, CLIENTS)), DRIFT),
    Figure("norms", partial(curves, (NORM, MOVED)), DRIFT),
    Figure("shift", partial(curves, (SHIFT, C_T)), "no run has them: they are FedDyn's"),
    Figure("clusters", partial(curves, (CLUSTERS,)), FEATURES),
    Figure("frequency", frequency, FEATURES),
    Figure("retained", partial(curves, (KEPT, NEXT, BEFORE)), FEATURES),
    Figure(
        "similarity", partial(by_unit, "features.cka.clients", "mean linear CKA of two clients"), FEATURES
    ),
    Figure(
        "clients", sorted_clients, "no run has local tests: set evaluation.local_test, or evaluation.local"
    ),
    Figure("cost", pictured, "no run tells its cost: an earlier version wrote them"),
)
