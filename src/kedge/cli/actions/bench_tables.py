"""Tables of kedge bench, one for each kind of workload."""

from collections.abc import Sequence

from rich.markup import escape
from rich.table import Table

from kedge.bench.diagnostics import Overhead
from kedge.bench.engines import EngineSpeed
from kedge.bench.federation import ABOUT, FederationSpeed
from kedge.bench.freezing import PhaseCost, agreements
from kedge.bench.methods import MethodCost
from kedge.bench.networks.profile import Profile
from kedge.bench.networks.setting import BATCH, Setting
from kedge.bench.networks.speeds import NetworkSpeed
from kedge.bench.packing import PackSpeed
from kedge.bench.peers.peers import REFERENCES, PeerSpeed
from kedge.bench.ratios import Ratio
from kedge.bench.workloads import Workload
from kedge.cli.output import console, print_notes
from kedge.report.tables.layout import plain_table

MAX_NAME = 100  # characters of a kernel's name: names of compiled kernels list all their operators


def print_engines(work: Workload, rows: Sequence[EngineSpeed]) -> None:
    """Print the speed of each way to do one workload."""
    table = bench_table("samples/s", "to plain loop", "to central", "warm-up, s")
    for row in rows:
        speed, ratios = f"{row.samples_per_second:,.0f}", (times(row.to_plain), times(row.to_central))
        table.add_row(row.how, speed, *ratios, f"{row.warmup_seconds:.1f}")
    show(f"{work.name}: {work.about}", table)


def print_networks(rows: Sequence[NetworkSpeed]) -> None:
    """Print the speeds of one setting."""
    has_memory = any(row.memory is not None for row in rows)
    table = plain_table()
    add_number_columns(table, "clients")
    table.add_column(no_wrap=True)
    table.add_column(no_wrap=True)
    add_number_columns(table, "samples/s", "to plain loop", "to central", "first round, s")
    if has_memory:
        add_number_columns(table, "memory, GB")
    for row in rows:
        cells = [str(row.clients), row.how, row.precision, f"{row.samples_per_second:,.0f}"]
        cells += [times(row.to_plain), times(row.to_central), f"{row.first_round_seconds:.1f}"]
        table.add_row(*cells, *([f"{row.memory / 1e9:.2f}"] if row.memory is not None else []))
    show(f"{rows[0].network}: batch {BATCH}, images of 3×32×32", table)


def print_profile(profile: Profile) -> None:
    """Print the kernels that take the most time of a local step."""
    total = sum(kernel.microseconds for kernel in profile.kernels)
    about = f"profile: {profile.network}, {profile.clients} clients, {profile.how}, {profile.precision}"
    table = bench_table("calls", "µs", "share")
    for name, calls, microseconds, share in profile.kernels:
        short_name = name if len(name) <= MAX_NAME else f"{name[: MAX_NAME - 1]}…"
        table.add_row(escape(short_name), f"{calls:.1f}", f"{microseconds:,.1f}", f"{share:.1%}")
    notes = [] if profile.kernels else ["The profiler recorded no kernels."]
    show(f"{about}: {total:,.0f} µs a local step", table, notes)


def print_methods(work: Workload, costs: Sequence[MethodCost]) -> None:
    """Print the cost of each method beside FedAvg."""
    columns = ["multiply-adds", "compiled", "quartiles", "uncompiled", "quartiles", "bound", "holds"]
    table = bench_table(*columns)
    table.add_column()  # the reason, which may wrap
    for cost in costs:
        if cost.reason:
            table.add_row(cost.method, *len(columns) * [""], cost.reason)
            continue
        ratios = (*ratio_cells(cost.compiled), *ratio_cells(cost.uncompiled))
        table.add_row(cost.method, times(cost.work), *ratios, times(cost.bound), cost.holds or "")
    show(f"{work.name}: {work.about}", table)


def print_overheads(work: Workload, rows: Sequence[Overhead]) -> None:
    """Print the cost of diagnostics for each method."""
    table = bench_table("measure.drift to without", "quartiles", "bound", "holds")
    for row in rows:
        table.add_row(row.method, *ratio_cells(row.ratio), times(row.bound), "yes" if row.holds else "no")
    show(f"{work.name}: {work.about}", table)


def print_freezing(setting: Setting, rows: Sequence[PhaseCost]) -> None:
    """Print the time of each phase beside FedAvg, one table for each precision."""
    for precision, agreeing, pairs in agreements(rows):
        table = bench_table("trains", "multiply-adds", "time", "quartiles", "bound", "holds")
        for row in [row for row in rows if row.precision == precision]:
            mask = "".join("●" if trains else "○" for trains in row.mask)
            ratios = (times(row.work), *ratio_cells(row.time))
            table.add_row("\n".join(row.names), mask, *ratios, times(row.bound), row.holds or "")
        notes = [
            f"Of {pairs} pairs of rows, the one with fewer multiply-adds is the faster in {agreeing}.",
            "The first row compares FedAvg with itself: its distance from 1 is the error of the timing.",
        ]
        about = f"freezing, {precision}: {setting.work().about}, {setting.network} on 3×32×32"
        show(about, table, notes)


def print_packing(setting: Setting, rows: Sequence[PackSpeed]) -> None:
    """Print the speed of runs alone and packed."""
    has_streams = any(row.streams > 1 for row in rows)
    streams = ["streams"] if has_streams else []
    columns = ["runs", *streams, "alone, samples/s", "packed, samples/s", "ratio", "rounds", "difference"]
    table = bench_table(*columns)
    for row in rows:
        cells = [row.precision, str(row.runs), *([str(row.streams)] if has_streams else [])]
        speeds = (f"{row.alone:,.0f}", f"{row.packed:,.0f}", times(row.ratio))
        table.add_row(*cells, *speeds, str(row.rounds), f"{row.difference:.1e}")
    notes = [
        "alone: one run; packed: all runs together. difference: of the weights after all rounds,",
        "packed to alone, relative to the layer's largest weight; the largest of all layers and runs.",
    ]
    about = f"local steps {setting.steps}, batch {BATCH}, {setting.network} on 3×32×32"
    show(f"packing: runs of one client a round, {about}", table, notes)


def print_federation(rows: Sequence[FederationSpeed]) -> None:
    """Print the speed of a federation on loopback beside one process."""
    table = bench_table("samples/s", "seconds a round")
    for row in rows:
        table.add_row(row.how, f"{row.samples_per_second:,.0f}", f"{row.seconds_a_round:.3f}")
    show(f"federation: {ABOUT}", table, ["Medians of ten rounds, after two that are not timed."])


def print_peers(work: Workload, rows: Sequence[PeerSpeed]) -> None:
    """Print the speed of kedge beside other frameworks."""
    table = bench_table("", "samples/s", *(f"to {how}" for how in REFERENCES), "warm-up, s")
    table.add_column()  # the note, which may wrap
    for row in rows:
        speed, warm_up = row.samples_per_second, row.warmup_seconds
        cells = [row.how, row.precision or "", "" if speed is None else f"{speed:,.0f}"]
        cells += [*map(times, row.ratios.values()), "" if warm_up is None else f"{warm_up:.1f}"]
        table.add_row(*cells, escape(row.note))
    note = "The warm-up (start and two rounds) is not timed. Without a precision: PyTorch's settings."
    show(f"{work.name}: {work.about}", table, [note])


def show(about: str, table: Table, notes: Sequence[str] = ()) -> None:
    """Print a description, the table below it, notes and an empty line."""
    console().print(about, style="italic", highlight=False, soft_wrap=True)
    console().print(table)
    print_notes(notes)
    console().print()


def bench_table(*numbers: str) -> Table:
    """An empty table with a column of texts without a heading, then columns of numbers."""
    table = plain_table()
    table.add_column(no_wrap=True)
    add_number_columns(table, *numbers)
    return table


def add_number_columns(table: Table, *names: str) -> None:
    """Add columns of numbers, which do not wrap."""
    for name in names:
        table.add_column(name, justify="right", no_wrap=True)


def times(ratio: float | None) -> str:
    """A ratio as the text of a cell: 1.25×; empty for None."""
    return "" if ratio is None else f"{ratio:.2f}×"


def ratio_cells(ratio: Ratio | None) -> tuple[str, str]:
    """Median and quartiles of a ratio, as two cells."""
    return (times(ratio.middle), f"{ratio.low:.2f}–{ratio.high:.2f}") if ratio else ("", "")
