"""Costs of an experiment: parameters updated, multiply-adds and bytes, computed without training."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from kedge.cli.actions.run import check_methods, run_plan
from kedge.cli.output import console, print_json, print_line, print_notes
from kedge.config.assemble import assemble
from kedge.config.experiment import Experiment
from kedge.nn.precision import Precision
from kedge.report.costs import phases, total
from kedge.report.numbers import with_prefix
from kedge.report.plots.cost import cost_figure
from kedge.report.plots.png import png
from kedge.report.tables.cost import UNITS, phase_table
from kedge.running.folders.folder import write
from kedge.running.recording.round_costs import fine_tuning_cost, predicted_lines

PAPERS = "papers' count: the parameters updated if all clients took part in every round, as papers count them"


class RunCost:
    """Costs of one run, round by round."""

    def __init__(self, experiment: Experiment, method: str, papers_count: bool) -> None:
        # With tf32 and bf16 weights are sent in fp32. The count runs on the CPU of any machine.
        precision: Precision = "fp64" if experiment.engine.precision == "fp64" else "fp32"
        engine = replace(experiment.engine, device="cpu", precision=precision)
        task = assemble(replace(experiment, engine=engine))
        self.method, self.rounds = method, task.rounds
        self.clients = len(task.federation.clients)
        self.ended_by_a_rule = [stage.algorithm.name for stage in task.stages if stage.until]
        self.frozen = sum(v.numel() for v in task.model.frozen.values())
        self.lines = list(predicted_lines(task, papers_count))
        self.phases, self.total = phases(self.lines), total(self.lines) or {}
        self.tuning = fine_tuning_cost(task)

    def document(self) -> dict[str, Any]:
        """The costs as a JSON document."""
        participants = [len(line["clients"]) for line in self.lines]
        return {
            "method": self.method,
            "rounds": self.rounds,
            "clients": self.clients,
            "clients_per_round": sum(participants) / len(participants),
            "frozen_parameters": self.frozen,
            "phases": self.phases,
            "total": self.total,
            "tuning": self.tuning,
            "ended_by_a_rule": self.ended_by_a_rule,
        }


def run_costs(document: dict[str, Any], methods: str, sets: list[str], papers_count: bool) -> list[RunCost]:
    """Costs of an experiment's runs, one for each method."""
    check_methods(methods, sets)
    plan = run_plan(document, methods, 1)
    labels = [run.experiment.label for run in plan]
    return [
        RunCost(run.experiment, label if labels.count(label) == 1 else run.folder.name, papers_count)
        for run, label in zip(plan, labels, strict=True)
    ]


def cost_plot(costs: Sequence[RunCost], name: str, path: Path) -> None:
    """Draw the phases of all runs into a PNG."""
    write(path, png(cost_figure([(cost.method, cost.lines) for cost in costs], name)))


def print_costs(
    costs: Sequence[RunCost], name: str, papers_count: bool, plot: Path | None, as_json: bool
) -> None:
    """Print the costs of all runs as tables, or as JSON."""
    if as_json:
        runs = [cost.document() for cost in costs]
        print_json({"experiment": name, "runs": runs, "plot": str(plot) if plot else None})
        return
    for cost in costs:
        print_cost(cost)
    print_notes([UNITS, *([PAPERS] if papers_count else [])])
    if plot is not None:
        print_line(f"written: {plot}")


def print_cost(cost: RunCost) -> None:
    """Print the table of one run, and remarks below it."""
    per_round = cost.document()["clients_per_round"]
    head = f"{cost.method}: {cost.rounds} rounds, {per_round:.4g} of {cost.clients} clients in each"
    print_line(head, "bold")
    console().print(phase_table(cost.phases, cost.total))
    remarks = [
        f"{name} may end earlier, by its rule; the table has all its rounds" for name in cost.ended_by_a_rule
    ]
    if cost.frozen:
        remarks.append(f"{cost.frozen:,} parameters are frozen (requires_grad=False): not trained, not sent")
    if cost.tuning:
        amount = f"{cost.tuning['clients']} clients, {cost.tuning['epochs']} epochs"
        macs = with_prefix(cost.tuning["macs"])
        remarks.append(f"fine-tuning before personal models are measured ({amount}): {macs} MACs more")
    print_notes([*remarks, ""])
