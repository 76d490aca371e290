"""kedge bench: samples per second of the engines on this machine, and the cost of methods beside FedAvg."""

from typing import Annotated

import typer

from kedge.cli import completion
from kedge.cli.errors import report_errors
from kedge.cli.options import Debug, Device, Json

WORKLOADS = "overhead", "compute", "networks", "methods", "freezing", "packing", "diagnostics", "federation"
PEERS = "overhead, compute, standard, pfl-cifar10"
NETWORKS = "standard-cnn,resnet18,resnet20"


@report_errors
def command(
    workloads: Annotated[
        list[str] | None,
        typer.Argument(
            help="overhead, compute: the engines. networks: standard CNN, ResNet-18 and ResNet-20 at 1, 10 "
            "and 100 clients. methods: the cost of each method beside FedAvg. freezing: the phases of "
            "FedBug, Vanilla and Anti beside FedAvg. packing: runs of one client a round, alone and packed. "
            "diagnostics: the cost of measure.drift. federation: kedge serve and kedge join on this "
            "machine. networks, methods and freezing take ten minutes or "
            f"more. Default: overhead, compute, networks. With --peers: {PEERS}; default: all of them.",
            autocompletion=completion.one_of(*WORKLOADS),
        ),
    ] = None,
    device: Device = "auto",
    repeats: Annotated[int, typer.Option(help="Measurements of each row; the table has the median.")] = 7,
    compiled: Annotated[
        bool,
        typer.Option(
            "--compile/--no-compile",
            help="Whether to measure the compiled engine too. freezing measures one engine: the compiled one "
            "or the other.",
        ),
    ] = True,
    networks: Annotated[str, typer.Option(help="For networks: which networks.")] = NETWORKS,
    clients: Annotated[str, typer.Option(help="For networks: clients in each round.")] = "1,10,100",
    precisions: Annotated[
        str,
        typer.Option(
            help="For networks, packing and freezing. Default on a GPU: tf32,bf16, for freezing tf32. "
            "Default on a CPU: fp32."
        ),
    ] = "",
    steps: Annotated[
        int,
        typer.Option(
            help="Local steps in each round. Default for networks, freezing and packing: 100 on a GPU; on a "
            "CPU 1 for networks, 2 for the others. Default for standard, with --peers: 10."
        ),
    ] = 0,
    runs: Annotated[int, typer.Option(help="For packing: number of runs in the pack.")] = 4,
    streams: Annotated[
        str,
        typer.Option(
            help="For networks and packing on a GPU: numbers of CUDA streams, as in 1,2,10, over which the "
            "clients of a round, or the packed runs, are split. Numbers that do not divide them are skipped."
        ),
    ] = "1",
    profile: Annotated[
        bool,
        typer.Option(
            "--profile",
            help="For networks: after the timing, list the largest kernels (CPU: operators) of each row.",
        ),
    ] = False,
    peers: Annotated[
        bool,
        typer.Option(
            "--peers",
            help="Compare with pfl-research and Flower's simulation, if they are installed. Takes minutes.",
        ),
    ] = False,
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Time the plain loop over clients, each engine and central training on the same work."""
    from kedge.cli.actions.bench import run_benchmarks
    from kedge.cli.actions.bench_plan import Options, plan_of

    options = Options(
        device, repeats, compiled, networks, clients, precisions, steps, runs, streams, profile, peers
    )
    run_benchmarks(plan_of(workloads or [], options), as_json)
