"""kedge bench: samples per second of the engines on this machine."""

import platform
from typing import Annotated

import torch
import typer
from rich.table import Table

from kedge.bench.bench import bench
from kedge.bench.workloads import WORKLOADS
from kedge.cli.options import Debug, Json, console, guarded, say, show
from kedge.core.errors import RequestError, nearest
from kedge.running.assemble import device_of
from kedge.running.config import EngineChoice
from kedge.running.schema import checked, parameters


@guarded
def command(
    workloads: Annotated[
        list[str] | None, typer.Argument(help="overhead, compute; without it, both.")
    ] = None,
    device: Annotated[str, typer.Option(help="auto, cpu or cuda.")] = "auto",
    repeats: Annotated[int, typer.Option(help="Turns; the median is told.")] = 7,
    compiled: Annotated[
        bool, typer.Option("--compile/--no-compile", help="Measure the compiled engine too.")
    ] = True,
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Time the plain per-client loop, each engine and central training on the same work, in one run."""
    for name in workloads or ():
        if name not in WORKLOADS:
            raise RequestError(
                f"kedge bench {name}: no such workload.{nearest(name, WORKLOADS)} "
                f"Allowed: {', '.join(WORKLOADS)}."
            )
    if repeats < 1:
        raise RequestError(f"--repeats {repeats}: need at least 1.")
    wanted = checked(parameters(EngineChoice)["device"][0], device, "--device")
    where = device_of(EngineChoice(device=wanted))
    chosen = [WORKLOADS[name] for name in workloads or WORKLOADS]
    rows = bench(chosen, where, repeats, compiled, say)
    machine = {
        "device": torch.cuda.get_device_name()
        if where == "cuda"
        else platform.processor() or platform.machine(),
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
    }
    if as_json:
        show({"machine": machine, "rows": [row._asdict() for row in rows]})
        return
    for work in chosen:
        console().print(f"{work.name}: {work.about}", style="italic", highlight=False, soft_wrap=True)
        table = Table(box=None, header_style="bold", pad_edge=False)
        table.add_column("", no_wrap=True)
        for name in ("samples/s", "to plain loop", "to central", "warm-up, s"):
            table.add_column(name, justify="right", no_wrap=True)
        for row in rows:
            if row.workload == work.name:
                table.add_row(
                    row.how,
                    f"{row.samples_per_second:,.0f}",
                    f"{row.to_plain:.2f}×",
                    f"{row.to_central:.2f}×",
                    f"{row.warmup_seconds:.1f}",
                )
        console().print(table)
        console().print()
    console().print(
        f"{machine['device']}, {machine['threads']} threads, torch {machine['torch']}", highlight=False
    )
