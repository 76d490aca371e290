"""The work of kedge bench: measure the workloads of a plan, print their tables, collect the rows."""

import platform
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple

import torch

from kedge.bench.candidates import candidates
from kedge.bench.diagnostics import overheads
from kedge.bench.engines import engine_speeds
from kedge.bench.federation import federation_speeds
from kedge.bench.freezing import CLIENTS, agreements, phase_costs
from kedge.bench.methods import method_costs
from kedge.bench.networks.speeds import NetworkBench
from kedge.bench.packing import pack_speeds
from kedge.bench.peers.peers import peer_speeds
from kedge.bench.workloads import DIAGNOSTICS, METHODS, PEERS, WORKLOADS, standard
from kedge.cli.actions.bench_plan import Plan
from kedge.cli.actions.bench_tables import (
    print_engines,
    print_federation,
    print_freezing,
    print_methods,
    print_networks,
    print_overheads,
    print_packing,
    print_peers,
    print_profile,
)
from kedge.cli.output import console, print_json

KEYS = (  # of the JSON document
    "rows",
    "networks",
    "profiles",
    "methods",
    "freezing",
    "freezing_agreement",
    "packing",
    "diagnostics",
    "federation",
    "peers",
)


class Result(NamedTuple):
    """The rows of a measurement, their key in the JSON document, and a function that prints them."""

    key: str
    rows: Sequence[Any]
    print: Callable[[], None]


def run_benchmarks(plan: Plan, as_json: bool) -> None:
    """Measure all workloads; print each table as soon as it is measured, or all rows as JSON at the end."""
    rows: dict[str, list[Any]] = {key: [] for key in KEYS}
    for result in results(plan):
        rows[result.key] += result.rows
        if not as_json:
            result.print()
    if as_json:
        print_json({"machine": machine(plan.device), **document(rows)})
    else:
        description = "{device}, {threads} threads, torch {torch}".format(**machine(plan.device))
        console().print(description, highlight=False)


def results(plan: Plan) -> Iterator[Result]:
    """Measure the workloads one after another."""
    for name in plan.names:
        if plan.options.peers:
            yield peers_result(plan, name)
        elif name in WORKLOADS:
            rows = engine_speeds(WORKLOADS[name], plan.timing)
            yield Result("rows", rows, partial(print_engines, WORKLOADS[name], rows))
    for name, measurement in MEASUREMENTS.items():
        if name in plan.names:
            yield from measurement(plan)


def peers_result(plan: Plan, name: str) -> Result:
    """Time kedge and other frameworks on one workload."""
    steps = plan.options.steps
    work = standard(steps) if steps and name == "standard" else PEERS[name]
    rows = peer_speeds(work, plan.timing)
    return Result("peers", rows, partial(print_peers, work, rows))


def methods_results(plan: Plan) -> Iterator[Result]:
    """Time each method beside FedAvg."""
    units = len(METHODS.task("cpu").model.units)
    costs = method_costs(candidates(units), METHODS, plan.timing)
    yield Result("methods", costs, partial(print_methods, METHODS, costs))


def freezing_results(plan: Plan) -> Iterator[Result]:
    """Time the phases of freezing schedules beside FedAvg."""
    setting = plan.setting(CLIENTS)
    rows = phase_costs(setting, plan.precisions_or("tf32"), plan.timing)
    yield Result("freezing", rows, partial(print_freezing, setting, rows))
    yield Result("freezing_agreement", agreements(rows), print_nothing)


def packing_results(plan: Plan) -> Iterator[Result]:
    """Time runs alone and packed."""
    setting = plan.setting(1)
    rows = pack_speeds(setting, plan.precisions, plan.timing, plan.options.runs, plan.streams)
    yield Result("packing", rows, partial(print_packing, setting, rows))


def diagnostics_results(plan: Plan) -> Iterator[Result]:
    """Time rounds with and without measure.drift."""
    rows = overheads(DIAGNOSTICS, plan.timing)
    yield Result("diagnostics", rows, partial(print_overheads, DIAGNOSTICS, rows))


def federation_results(plan: Plan) -> Iterator[Result]:
    """Time a federation on loopback beside one process."""
    rows = federation_speeds(plan.timing.say)
    yield Result("federation", rows, partial(print_federation, rows))


def networks_results(plan: Plan) -> Iterator[Result]:
    """Time and profile networks; each setting has a table, the JSON document has the rows in order."""
    bench = NetworkBench(plan.settings, plan.precisions, plan.timing, plan.streams)
    for rows in bench.speeds():
        yield Result("networks", [], partial(print_networks, rows))
    yield Result("networks", bench.sorted_rows(), print_nothing)
    for profile in bench.profiles() if plan.options.profile else []:
        yield Result("profiles", [profile], partial(print_profile, profile))


def print_nothing() -> None:
    """Print nothing: the rows are in another table."""


def machine(device: str) -> dict[str, Any]:
    """Device, threads and the version of PyTorch."""
    name = torch.cuda.get_device_name() if device == "cuda" else platform.processor() or platform.machine()
    return {"device": name, "threads": torch.get_num_threads(), "torch": torch.__version__}


def document(value: Any) -> Any:
    """Rows as JSON values: a named tuple becomes an object, with the key `holds` if it has a bound."""
    if isinstance(value, tuple) and hasattr(value, "_asdict"):
        verdict = {"holds": value.holds} if hasattr(value, "holds") else {}
        return {**document(value._asdict()), **verdict}
    if isinstance(value, dict):
        return {key: document(entry) for key, entry in value.items()}
    return [document(entry) for entry in value] if isinstance(value, list | tuple) else value


MEASUREMENTS: dict[str, Callable[[Plan], Iterator[Result]]] = {
    METHODS.name: methods_results,
    "freezing": freezing_results,
    "packing": packing_results,
    DIAGNOSTICS.name: diagnostics_results,
    "federation": federation_results,
    "networks": networks_results,  # last, since the profiler slows every later measurement
}
