"""kedge theory: simulate FedBug's linear model and compare it with the theory."""

from pathlib import Path
from typing import Annotated

import typer

from kedge.cli.errors import report_errors
from kedge.cli.options import Debug, Json


@report_errors
def command(
    seeds: Annotated[int, typer.Option(help="Random starts: n and v uniform between 0 and 2.")] = 50,
    rounds: Annotated[int, typer.Option(help="Rounds of each start.")] = 80,
    steps: Annotated[int, typer.Option(help="Local steps of each round.")] = 50,
    lr: Annotated[float, typer.Option(help="The local learning rate.")] = 0.1,
    frozen: Annotated[
        list[str],
        typer.Option(
            help="FedBug's frozen steps: a number of steps, or a share P with a point (0.4), in whose first "
            "half v is frozen. Repeatable. Default: 1, 0.2 and 0.4."
        ),
    ] = [],  # noqa: B006
    clients: Annotated[int, typer.Option(help="Number of clients; each has its own n.")] = 2,
    model: Annotated[
        str, typer.Option(help="multiplicative: f = n·v. additive: f = n + v, as in the paper's appendix.")
    ] = "multiplicative",
    gradient: Annotated[
        int, typer.Option(help="2: the true gradient of (f − 1)². 1: half of it, as the paper prints it.")
    ] = 2,
    flow: Annotated[
        bool, typer.Option("--flow", help="Local gradient flow until it converges, instead of steps.")
    ] = False,
    plot_file: Annotated[
        Path | None, typer.Option("--plot", help="Draw the three panels of the paper's figure into this PNG.")
    ] = None,
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Simulate FedAvg, FedBug and FedBABU on a linear model and compare the speed with the theory."""
    from kedge.cli.actions.theory import Laboratory, check_plot, draw, print_simulation, simulate

    laboratory = Laboratory(seeds, rounds, steps, lr, clients, model, gradient, flow)
    laboratory.check()
    if plot_file is not None:
        check_plot(plot_file)
    result = simulate(laboratory, frozen)
    if plot_file is not None:
        draw(result, plot_file)
    print_simulation(result, plot_file, as_json)
