"""kedge bench: samples per second of the engines on this machine, and what methods cost beside FedAvg."""

import platform
import typing
from collections.abc import Sequence
from typing import Annotated, Any

import torch
import typer
from rich.markup import escape
from rich.table import Table

from kedge.bench.bench import Row, bench
from kedge.bench.candidates import candidates
from kedge.bench.diagnostics import Overhead, overheads
from kedge.bench.methods import Cost, Ratio, method_costs
from kedge.bench.networks import BATCH, NETWORKS, Setting, Speed, speeds
from kedge.bench.peers import REFERENCES, Peer, compare
from kedge.bench.workloads import DIAGNOSTICS, METHODS, PEERS, WORKLOADS, Workload, standard
from kedge.cli.options import Debug, Json, console, guarded, notes, say, show
from kedge.core.errors import RequestError, nearest
from kedge.core.precision import DTYPES, Precision
from kedge.running.assemble import device_of
from kedge.running.config import EngineChoice
from kedge.running.schema import checked, parameters


@guarded
def command(
    workloads: Annotated[
        list[str] | None,
        typer.Argument(
            help="overhead, compute: the engines; networks: standard CNN, ResNet-18, ResNet-20 at 1, 10, 100 "
            "clients; methods: every method's cost beside FedAvg (networks and methods take ten minutes or "
            "more); diagnostics: what measure.drift costs. Without it, overhead and compute. With --peers: "
            f"{', '.join(PEERS)}; without it, all of them."
        ),
    ] = None,
    device: Annotated[str, typer.Option(help="auto, cpu or cuda.")] = "auto",
    repeats: Annotated[int, typer.Option(help="Turns; the median is told.")] = 7,
    compiled: Annotated[
        bool, typer.Option("--compile/--no-compile", help="Measure the compiled engine too.")
    ] = True,
    networks: Annotated[str, typer.Option(help=f"For networks: some of {', '.join(NETWORKS)}.")] = ",".join(
        NETWORKS
    ),
    clients: Annotated[
        str, typer.Option(help="For networks: clients a round; 1,10,100 on a GPU, else 1,10.")
    ] = "",
    precisions: Annotated[str, typer.Option(help="For networks: tf32,bf16 on a GPU, else fp32.")] = "",
    steps: Annotated[
        int,
        typer.Option(
            help="Local steps a round; for networks 100 on a GPU, else 1; for standard, with --peers, 10."
        ),
    ] = 0,
    peers: Annotated[
        bool,
        typer.Option(
            "--peers", help="Beside pfl-research and Flower's simulation, where installed; takes minutes."
        ),
    ] = False,
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Time the plain per-client loop, each engine and central training on the same work, in one run."""
    allowed = tuple(PEERS) if peers else (*WORKLOADS, "networks", METHODS.name, DIAGNOSTICS.name)
    for name in workloads or ():
        if name not in allowed:
            raise RequestError(
                f"kedge bench {name}: no such workload.{nearest(name, allowed)} "
                f"Allowed: {', '.join(allowed)}."
            )
    if repeats < 1:
        raise RequestError(f"--repeats {repeats}: need at least 1.")
    wanted = checked(parameters(EngineChoice)["device"][0], device, "--device")
    where = device_of(EngineChoice(device=wanted))
    names = workloads or list(PEERS if peers else WORKLOADS)
    chosen = [WORKLOADS[name] for name in names if name in WORKLOADS and not peers]
    both = [standard(steps) if steps and name == "standard" else PEERS[name] for name in names if peers]
    others = compare(both, where, repeats, compiled, say)
    found: list[Speed] = []
    if "networks" in (workloads or ()):
        settings, kinds = asked(where, networks, clients, precisions, steps)
        found = speeds(settings, kinds, where, repeats, say)
    rows = bench(chosen, where, repeats, compiled, say)
    costs: list[Cost] = []
    if METHODS.name in (workloads or ()):
        listed = candidates(len(METHODS.task("cpu").model.units))
        costs = method_costs(listed, METHODS, where, repeats, compiled, say)
    looks = overheads(DIAGNOSTICS, where, repeats, say) if DIAGNOSTICS.name in (workloads or ()) else []
    machine = {
        "device": torch.cuda.get_device_name()
        if where == "cuda"
        else platform.processor() or platform.machine(),
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
    }
    if as_json:
        show(
            {
                "machine": machine,
                "rows": [row._asdict() for row in rows],
                "networks": [row._asdict() for row in found],
                "methods": documents(costs),
                "diagnostics": told(looks),
                "peers": [row._asdict() for row in others],
            }
        )
        return
    for work in chosen:
        print_engines(work, [row for row in rows if row.workload == work.name])
    if found:
        print_networks(found)
    if costs:
        print_methods(METHODS, costs)
    if looks:
        print_overheads(DIAGNOSTICS, looks)
    for work in both:
        print_peers(work, [row for row in others if row.workload == work.name])
    console().print(
        f"{machine['device']}, {machine['threads']} threads, torch {machine['torch']}", highlight=False
    )


def print_engines(work: Workload, rows: Sequence[Row]) -> None:
    """The ways to do the same work."""
    table = headed(work, "samples/s", "to plain loop", "to central", "warm-up, s")
    for row in rows:
        table.add_row(
            row.how,
            f"{row.samples_per_second:,.0f}",
            f"{row.to_plain:.2f}×",
            f"{row.to_central:.2f}×",
            f"{row.warmup_seconds:.1f}",
        )
    console().print(table)
    console().print()


def asked(
    device: str, networks: str, clients: str, precisions: str, steps: int
) -> tuple[list[Setting], list[Precision]]:
    """The settings and precisions that the options name."""
    gpu = device == "cuda"
    names, counts = split(networks), split(clients) or (["1", "10", "100"] if gpu else ["1", "10"])
    kinds = split(precisions) or (["tf32", "bf16"] if gpu else ["fp32"])
    for name in names:
        if name not in NETWORKS:
            raise RequestError(
                f"--networks {name}: no such network here.{nearest(name, NETWORKS)} "
                f"Allowed: {', '.join(NETWORKS)}."
            )
    for kind in kinds:
        if kind not in DTYPES or (kind == "tf32" and not gpu):
            allowed = [known for known in DTYPES if gpu or known != "tf32"]
            raise RequestError(f"--precisions {kind}: allowed here: {', '.join(allowed)}.")
    for count in counts:
        if not count.isdigit() or int(count) < 1:
            raise RequestError(f"--clients {count}: need whole numbers of at least 1, as in 1,10,100.")
    if steps < 0:
        raise RequestError(f"--steps {steps}: need at least 1.")
    local = steps or (100 if gpu else 1)
    settings = [Setting(name, int(count), local) for name in names for count in counts]
    return settings, [known for known in typing.get_args(Precision) if known in kinds]


def split(text: str) -> list[str]:
    """The parts of a comma-separated list."""
    return [part.strip() for part in text.split(",") if part.strip()]


def print_networks(rows: Sequence[Speed]) -> None:
    """Networks, clients and ways to train them."""
    gpu = any(row.memory is not None for row in rows)
    columns = ("samples/s", "to plain loop", "to central", "first round, s", *(["memory, GB"] if gpu else []))
    for network in dict.fromkeys(row.network for row in rows):
        console().print(f"{network}: batch {BATCH}, images of 3×32×32", style="italic", highlight=False)
        table = Table(box=None, header_style="bold", pad_edge=False)
        for name in ("clients", "", "", *columns):
            table.add_column(name, justify="left" if not name else "right", no_wrap=True)
        for row in [row for row in rows if row.network == network]:
            cells = [str(row.clients), row.how, row.precision, f"{row.samples_per_second:,.0f}"]
            cells += ["" if v is None else f"{v:.2f}×" for v in (row.to_plain, row.to_central)]
            cells.append(f"{row.first_round_seconds:.1f}")
            table.add_row(*cells, *([f"{row.memory / 1e9:.2f}"] if row.memory is not None else []))
        console().print(table)
        console().print()


def print_methods(work: Workload, costs: Sequence[Cost]) -> None:
    """The methods beside FedAvg."""
    columns = ("multiply-adds", "compiled", "quartiles", "uncompiled", "quartiles", "bound", "holds")
    table = headed(work, *columns)
    table.add_column()
    for cost in costs:
        if cost.reason:
            table.add_row(cost.method, *len(columns) * [""], cost.reason)
            continue
        table.add_row(
            cost.method,
            f"{cost.work:.2f}×",
            *written(cost.compiled),
            *written(cost.uncompiled),
            f"{cost.bound:.2f}×" if cost.bound else "",
            cost.holds or "",
        )
    console().print(table)
    console().print()


def print_overheads(work: Workload, looks: Sequence[Overhead]) -> None:
    """Rounds with diagnostics beside the same rounds without."""
    table = headed(work, "measure.drift to without", "quartiles", "bound", "holds")
    for one in looks:
        table.add_row(one.method, *written(one.ratio), f"{one.bound:.2f}×", "yes" if one.holds else "no")
    console().print(table)
    console().print()


def print_peers(work: Workload, rows: Sequence[Peer]) -> None:
    """kedge beside other frameworks."""
    table = headed(work, "", "samples/s", *(f"to {how}" for how in REFERENCES), "warm-up, s")
    table.add_column()
    for row in rows:
        speed, warm = row.samples_per_second, row.warmup_seconds
        table.add_row(
            row.how,
            row.precision or "",
            "" if speed is None else f"{speed:,.0f}",
            *("" if ratio is None else f"{ratio:.2f}×" for ratio in row.ratios.values()),
            "" if warm is None else f"{warm:.1f}",
            escape(row.note),
        )
    console().print(table)
    notes(["The warm-up, start and two rounds, is not timed. Without a precision: torch's own settings."])
    console().print()


def headed(work: Workload, *columns: str) -> Table:
    """A table under the workload's description, which is printed here."""
    console().print(f"{work.name}: {work.about}", style="italic", highlight=False, soft_wrap=True)
    table = Table(box=None, header_style="bold", pad_edge=False)
    table.add_column("", no_wrap=True)
    for name in columns:
        table.add_column(name, justify="right", no_wrap=True)
    return table


def written(ratio: Ratio | None) -> tuple[str, str]:
    """A ratio's two cells."""
    return (f"{ratio.middle:.2f}×", f"{ratio.low:.2f}–{ratio.high:.2f}") if ratio else ("", "")


def told(looks: Sequence[Overhead]) -> list[dict[str, Any]]:
    """The overheads as JSON has them."""
    return [{**one._asdict(), "ratio": one.ratio._asdict(), "holds": one.holds} for one in looks]


def documents(costs: Sequence[Cost]) -> list[dict[str, Any]]:
    """The rows as JSON has them."""
    return [
        {
            **cost._asdict(),
            "compiled": cost.compiled and cost.compiled._asdict(),
            "uncompiled": cost.uncompiled and cost.uncompiled._asdict(),
            "holds": cost.holds,
        }
        for cost in costs
    ]
