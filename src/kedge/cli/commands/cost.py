"""kedge cost: parameters updated, multiply-adds and bytes of an experiment, before anything trains."""

from pathlib import Path
from typing import Annotated

import typer

from kedge.cli.errors import report_errors
from kedge.cli.options import Debug, Experiment, Json, Methods, ModelName, Seed, Sets, check_png


@report_errors
def command(
    experiment: Experiment,
    methods: Methods = "",
    model: ModelName = "",
    sets: Sets = [],  # noqa: B006
    seed: Seed = None,
    precision: Annotated[str, typer.Option(help="With fp64, numbers are sent in 8 bytes, not in 4.")] = "",
    papers_count: Annotated[
        bool, typer.Option("--papers-count", help="Also count as papers do: all clients in every round.")
    ] = False,
    plot: Annotated[Path | None, typer.Option(help="Draw the phases into this PNG.")] = None,
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Show what a run will cost, without training it.

    For each phase: the layers that train, parameters updated, multiply-adds and bytes sent.
    """
    from kedge.cli.actions.cost import cost_plot, print_costs, run_costs
    from kedge.cli.actions.training import read_document

    if plot is not None:
        check_png("--plot", plot)
    document = read_document(experiment, sets, seed, model=model, engine_precision=precision)
    costs = run_costs(document, methods, sets, papers_count)
    name = str(document["name"])
    if plot is not None:
        cost_plot(costs, name, plot)
    print_costs(costs, name, papers_count, plot, as_json)
