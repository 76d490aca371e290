"""Benchmarks of the engines, of methods and of other frameworks: options, measurements, results."""

import platform
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch

from kedge.bench.bench import Row, bench
from kedge.bench.candidates import candidates
from kedge.bench.diagnostics import Overhead, overheads
from kedge.bench.freezing import CLIENTS, Phase, agreements, freezing
from kedge.bench.methods import Cost, method_costs
from kedge.bench.networks import Speed, speeds
from kedge.bench.packing import Packing, packing
from kedge.bench.peers.peers import Peer, compare
from kedge.bench.profile import Profile
from kedge.bench.workloads import DIAGNOSTICS, METHODS, PEERS, WORKLOADS, standard
from kedge.cli.actions.bench_plan import Plan
from kedge.cli.actions.bench_tables import (
    method_documents,
    overhead_documents,
    phase_documents,
    print_engines,
    print_freezing,
    print_methods,
    print_networks,
    print_overheads,
    print_packing,
    print_peers,
    print_profile,
    profile_documents,
)
from kedge.cli.output import console, print_json, print_message


@dataclass
class Results:
    """Rows of the tables, by kind of workload."""

    device: str
    engines: list[Row] = field(default_factory=list)
    networks: list[Speed] = field(default_factory=list)
    profiles: list[Profile] = field(default_factory=list)
    methods: list[Cost] = field(default_factory=list)
    freezing: list[Phase] = field(default_factory=list)
    packing: list[Packing] = field(default_factory=list)
    diagnostics: list[Overhead] = field(default_factory=list)
    peers: list[Peer] = field(default_factory=list)

    def machine(self) -> dict[str, Any]:
        """Device, threads and the version of PyTorch."""
        on_gpu = self.device == "cuda"
        return {
            "device": torch.cuda.get_device_name() if on_gpu else platform.processor() or platform.machine(),
            "threads": torch.get_num_threads(),
            "torch": torch.__version__,
        }

    def document(self) -> dict[str, Any]:
        """All rows as a JSON document."""
        return {
            "machine": self.machine(),
            "rows": [row._asdict() for row in self.engines],
            "networks": [row._asdict() for row in self.networks],
            "profiles": profile_documents(self.profiles),
            "methods": method_documents(self.methods),
            "freezing": phase_documents(self.freezing),
            "freezing_agreement": [one._asdict() for one in agreements(self.freezing)],
            "packing": [row._asdict() for row in self.packing],
            "diagnostics": overhead_documents(self.diagnostics),
            "peers": [row._asdict() for row in self.peers],
        }


Print = Callable[..., None]  # prints a table, unless the result is printed as JSON


def measure(plan: Plan, print_tables: bool) -> Results:
    """Measure all workloads; print each table at once, so that an interruption loses none."""
    results = Results(plan.device)
    tables: Print = (lambda table, *of: table(*of)) if print_tables else (lambda table, *of: None)
    for name in plan.names:
        if plan.options.peers:
            measure_peers(plan, name, results, tables)
        elif name in WORKLOADS:
            measure_engines(plan, name, results, tables)
    for name, measurement in MEASUREMENTS.items():
        if name in plan.names:
            measurement(plan, results, tables)
    return results


def print_results(results: Results, as_json: bool) -> None:
    """Print all rows as JSON, or the machine below the tables."""
    if as_json:
        print_json(results.document())
        return
    machine = results.machine()
    console().print(
        f"{machine['device']}, {machine['threads']} threads, torch {machine['torch']}", highlight=False
    )


def measure_peers(plan: Plan, name: str, results: Results, tables: Print) -> None:
    """Time kedge and other frameworks on one workload."""
    steps = plan.options.steps
    work = standard(steps) if steps and name == "standard" else PEERS[name]
    rows = compare([work], *plan.timing)
    results.peers += rows
    tables(print_peers, work, rows)


def measure_engines(plan: Plan, name: str, results: Results, tables: Print) -> None:
    """Time the plain loop, the engines and central training on one workload."""
    rows = bench([WORKLOADS[name]], *plan.timing)
    results.engines += rows
    tables(print_engines, WORKLOADS[name], rows)


def measure_methods(plan: Plan, results: Results, tables: Print) -> None:
    """Time each method beside FedAvg."""
    listed = candidates(len(METHODS.task("cpu").model.units))
    results.methods = method_costs(listed, METHODS, *plan.timing)
    tables(print_methods, METHODS, results.methods)


def measure_freezing(plan: Plan, results: Results, tables: Print) -> None:
    """Time the phases of freezing schedules beside FedAvg."""
    setting = plan.setting(CLIENTS)
    results.freezing = freezing(setting, plan.precisions_or("tf32"), *plan.timing)
    tables(print_freezing, setting, results.freezing)


def measure_packing(plan: Plan, results: Results, tables: Print) -> None:
    """Time runs alone and packed."""
    setting, options = plan.setting(1), plan.options
    results.packing = packing(
        setting, plan.precisions, plan.device, options.runs, options.repeats, print_message, plan.streams
    )
    tables(print_packing, setting, results.packing)


def measure_diagnostics(plan: Plan, results: Results, tables: Print) -> None:
    """Time rounds with and without measure.drift."""
    results.diagnostics = overheads(DIAGNOSTICS, plan.device, plan.options.repeats, print_message)
    tables(print_overheads, DIAGNOSTICS, results.diagnostics)


def measure_networks(plan: Plan, results: Results, tables: Print) -> None:
    """Time the engines on several networks and numbers of clients, and profile them if asked to."""
    look = results.profiles.append if plan.options.profile else None
    results.networks = speeds(
        plan.settings, plan.precisions, plan.device, plan.options.repeats, print_message, plan.streams,
        look=look, done=partial(tables, print_networks),
    )  # fmt: skip
    for profile in results.profiles:
        tables(print_profile, profile)


MEASUREMENTS: dict[str, Callable[[Plan, Results, Print], None]] = {
    METHODS.name: measure_methods,
    "freezing": measure_freezing,
    "packing": measure_packing,
    DIAGNOSTICS.name: measure_diagnostics,
    "networks": measure_networks,  # last, since the profiler slows every later measurement
}
