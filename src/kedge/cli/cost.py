"""kedge cost: parameters updated, multiply-adds and bytes of an experiment, before anything trains."""

from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer

from kedge.cli.options import Debug, Json, check_png, console, guarded, notes, show
from kedge.cli.run import check_methods, variants
from kedge.config.assemble import assemble
from kedge.config.document import override, read, settings
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


@guarded
def command(
    experiment: Annotated[str, typer.Argument(help="A TOML file, or a shipped experiment by name.")],
    methods: Annotated[
        str,
        typer.Option(
            "--methods",
            "-m",
            help="Methods to compare: 'fedavg, scaffold, fedbug+feddyn'. Each names its schedule and later "
            "stages too: the experiment's own [schedule] and [[then]] are left out.",
        ),
    ] = "",
    model: Annotated[
        str, typer.Option(help="The network: a name with arguments, or your own: my_file.py:factory.")
    ] = "",
    sets: Annotated[
        list[str], typer.Option("--set", help="Any key of the config: --set training.epochs=5.")
    ] = [],  # noqa: B006
    seed: Annotated[
        int | None, typer.Option(help="The random seed: who takes part, and who has what.")
    ] = None,
    precision: Annotated[str, typer.Option(help="fp64: numbers are sent in 8 bytes, not in 4.")] = "",
    papers_count: Annotated[
        bool, typer.Option("--papers-count", help="Also count as papers do: all clients in every round.")
    ] = False,
    plot: Annotated[Path | None, typer.Option(help="Draw the phases into this PNG.")] = None,
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Tell what a run will cost, phase by phase: what trains, multiply-adds, bytes; nothing is trained."""
    if plot is not None:
        check_png("--plot", plot)
    check_methods(methods, sets)
    given = {"model": model, "engine.precision": precision}
    values = {k: v for k, v in given.items() if v} | settings(sets) | ({} if seed is None else {"seed": seed})
    document = override(read(experiment), values)
    plan = variants(document, methods, 1)
    labels = [one.label for _, one in plan]
    found = [
        Priced(one, one.label if labels.count(one.label) == 1 else folder.name, papers_count)
        for folder, one in plan
    ]
    if plot is not None:
        figure = cost_figure([(one.method, one.lines) for one in found], str(document["name"]))
        write(plot, png(figure))
    if as_json:
        runs = [one.document() for one in found]
        show({"experiment": document["name"], "runs": runs, "plot": str(plot) if plot else None})
        return
    for one in found:
        tell(one)
    notes([UNITS, *([PAPERS] if papers_count else [])])
    if plot is not None:
        console().print(f"written: {plot}", markup=False, highlight=False, soft_wrap=True)


class Priced:
    """An experiment, and what its rounds will cost."""

    def __init__(self, experiment: Experiment, method: str, papers_count: bool) -> None:
        # tf32 and bf16 are about products; weights are sent as in fp32, and counted anywhere.
        sent: Precision = "fp64" if experiment.engine.precision == "fp64" else "fp32"
        engine = replace(experiment.engine, device="cpu", precision=sent)
        task = assemble(replace(experiment, engine=engine))
        self.method, self.rounds = method, task.rounds
        self.clients = len(task.federation.clients)
        self.ruled = [stage.algorithm.name for stage in task.stages if stage.until]
        self.frozen = sum(v.numel() for v in task.model.frozen.values())
        self.lines = list(predicted_lines(task, papers_count))
        self.phases, self.total, self.tuning = (
            phases(self.lines),
            total(self.lines) or {},
            fine_tuning_cost(task),
        )

    def document(self) -> dict[str, Any]:
        """As JSON has it."""
        taking_part = [len(line["clients"]) for line in self.lines]
        return {
            "method": self.method,
            "rounds": self.rounds,
            "clients": self.clients,
            "clients_per_round": sum(taking_part) / len(taking_part),
            "frozen_parameters": self.frozen,
            "phases": self.phases,
            "total": self.total,
            "tuning": self.tuning,
            "ended_by_a_rule": self.ruled,
        }


def tell(one: Priced) -> None:
    """A run's table and what is to be said of it."""
    out = console()
    each = one.document()["clients_per_round"]
    head = f"{one.method}: {one.rounds} rounds, {each:.4g} of {one.clients} clients in each"
    out.print(head, style="bold", markup=False, highlight=False, soft_wrap=True)
    out.print(phase_table(one.phases, one.total))
    said = [f"{name} may end earlier, by its rule; the table has its most rounds" for name in one.ruled]
    if one.frozen:
        said.append(f"{one.frozen:,} parameters are frozen (requires_grad=False): not trained, not sent")
    if one.tuning:
        who = f"{one.tuning['clients']} clients, {one.tuning['epochs']} epochs"
        macs = with_prefix(one.tuning["macs"])
        said.append(f"fine-tuning before personal models are measured ({who}): {macs} MACs more")
    notes([*said, ""])
