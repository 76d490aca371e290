"""Tables of kedge bench for each kind of workload, and their rows as JSON documents."""

from collections.abc import Sequence
from typing import Any

from rich.markup import escape
from rich.table import Table

from kedge.bench.bench import Row
from kedge.bench.diagnostics import Overhead
from kedge.bench.freezing import Phase, agreements
from kedge.bench.methods import Cost, Ratio
from kedge.bench.networks import BATCH, Setting, Speed
from kedge.bench.packing import Packing
from kedge.bench.peers.peers import REFERENCES, Peer
from kedge.bench.profile import Profile
from kedge.bench.workloads import Workload
from kedge.cli.output import console, print_notes

WIDTH = 100  # of a kernel's name: those of compiled kernels list their operators


def print_engines(work: Workload, rows: Sequence[Row]) -> None:
    """Print the speed of each way to do one workload."""
    table = workload_table(work, "samples/s", "to plain loop", "to central", "warm-up, s")
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


def print_networks(rows: Sequence[Speed]) -> None:
    """Print the speed of each network, number of clients and engine."""
    last = ["memory, GB"] if any(row.memory is not None for row in rows) else []
    columns = ("samples/s", "to plain loop", "to central", "first round, s", *last)
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


def print_profile(found: Profile) -> None:
    """Print the kernels that take the most time of a local step."""
    total = sum(one.microseconds for one in found.kernels)
    about = f"profile: {found.network}, {found.clients} clients, {found.how}, {found.precision}"
    table = table_under(f"{about}: {total:,.0f} µs a local step", "calls", "µs", "share")
    for one in found.kernels:
        name = one.name if len(one.name) <= WIDTH else f"{one.name[: WIDTH - 1]}…"
        table.add_row(escape(name), f"{one.calls:.1f}", f"{one.microseconds:,.1f}", f"{one.share:.1%}")
    console().print(table)
    if not found.kernels:
        print_notes(["The profiler recorded no kernels."])
    console().print()


def print_methods(work: Workload, costs: Sequence[Cost]) -> None:
    """Print the cost of each method beside FedAvg."""
    columns = ("multiply-adds", "compiled", "quartiles", "uncompiled", "quartiles", "bound", "holds")
    table = workload_table(work, *columns)
    table.add_column()
    for cost in costs:
        if cost.reason:
            table.add_row(cost.method, *len(columns) * [""], cost.reason)
            continue
        table.add_row(
            cost.method,
            f"{cost.work:.2f}×",
            *ratio_cells(cost.compiled),
            *ratio_cells(cost.uncompiled),
            f"{cost.bound:.2f}×" if cost.bound else "",
            cost.holds or "",
        )
    console().print(table)
    console().print()


def print_overheads(work: Workload, looks: Sequence[Overhead]) -> None:
    """Print the cost of diagnostics for each method."""
    table = workload_table(work, "measure.drift to without", "quartiles", "bound", "holds")
    for one in looks:
        table.add_row(one.method, *ratio_cells(one.ratio), f"{one.bound:.2f}×", "yes" if one.holds else "no")
    console().print(table)
    console().print()


def print_freezing(setting: Setting, rows: Sequence[Phase]) -> None:
    """Print the time of each phase beside FedAvg, one table for each precision."""
    for found in agreements(rows):
        about = f"freezing, {found.precision}: {setting.work().about}, {setting.network} on 3×32×32"
        table = table_under(about, "trains", "multiply-adds", "time", "quartiles", "bound", "holds")
        for row in [row for row in rows if row.precision == found.precision]:
            table.add_row(
                "\n".join(row.names),
                "".join("●" if opened else "○" for opened in row.mask),
                f"{row.work:.2f}×",
                *ratio_cells(row.time),
                f"{row.bound:.2f}×" if row.bound else "",
                row.holds or "",
            )
        console().print(table)
        print_notes(
            [
                f"Of {found.pairs} pairs of rows, the one with fewer multiply-adds is the faster in "
                f"{found.agreeing}.",
                "The first row compares FedAvg with itself: its distance from 1 is the error of the timing.",
            ]
        )
        console().print()


def print_packing(setting: Setting, rows: Sequence[Packing]) -> None:
    """Print the speed of runs alone and packed."""
    several = any(row.streams > 1 for row in rows)
    columns = ("runs", *(["streams"] if several else []), "alone, samples/s", "packed, samples/s", "ratio")
    about = f"local steps {setting.steps}, batch {BATCH}, {setting.network} on 3×32×32"
    table = table_under(f"packing: runs of one client a round, {about}", *columns, "rounds", "difference")
    for row in rows:
        table.add_row(
            row.precision,
            str(row.runs),
            *([str(row.streams)] if several else []),
            f"{row.alone:,.0f}",
            f"{row.packed:,.0f}",
            f"{row.ratio:.2f}×",
            str(row.rounds),
            f"{row.difference:.1e}",
        )
    console().print(table)
    print_notes(
        [
            "alone: one run; packed: all runs together. difference: of the weights after so many rounds, "
            "packed to alone,",
            "relative to the largest weight of the layer; the largest of all layers and runs.",
        ]
    )
    console().print()


def print_peers(work: Workload, rows: Sequence[Peer]) -> None:
    """Print the speed of kedge beside other frameworks."""
    table = workload_table(work, "", "samples/s", *(f"to {how}" for how in REFERENCES), "warm-up, s")
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
    print_notes(["The warm-up (start and two rounds) is not timed. Without a precision: torch's settings."])
    console().print()


def workload_table(work: Workload, *columns: str) -> Table:
    """Print the description of a workload, and return an empty table."""
    return table_under(f"{work.name}: {work.about}", *columns)


def table_under(about: str, *columns: str) -> Table:
    """Print a description, and return an empty table."""
    console().print(about, style="italic", highlight=False, soft_wrap=True)
    table = Table(box=None, header_style="bold", pad_edge=False)
    table.add_column("", no_wrap=True)
    for name in columns:
        table.add_column(name, justify="right", no_wrap=True)
    return table


def ratio_cells(ratio: Ratio | None) -> tuple[str, str]:
    """Median and quartiles of a ratio, as two cells."""
    return (f"{ratio.middle:.2f}×", f"{ratio.low:.2f}–{ratio.high:.2f}") if ratio else ("", "")


def profile_documents(profiles: Sequence[Profile]) -> list[dict[str, Any]]:
    """The profiles as JSON documents."""
    return [{**one._asdict(), "kernels": [kernel._asdict() for kernel in one.kernels]} for one in profiles]


def overhead_documents(looks: Sequence[Overhead]) -> list[dict[str, Any]]:
    """The overheads as JSON documents."""
    return [{**one._asdict(), "ratio": one.ratio._asdict(), "holds": one.holds} for one in looks]


def phase_documents(rows: Sequence[Phase]) -> list[dict[str, Any]]:
    """The phases as JSON documents."""
    return [{**row._asdict(), "time": row.time._asdict(), "holds": row.holds} for row in rows]


def method_documents(costs: Sequence[Cost]) -> list[dict[str, Any]]:
    """The costs of methods as JSON documents."""
    return [
        {
            **cost._asdict(),
            "compiled": cost.compiled and cost.compiled._asdict(),
            "uncompiled": cost.uncompiled and cost.uncompiled._asdict(),
            "holds": cost.holds,
        }
        for cost in costs
    ]
