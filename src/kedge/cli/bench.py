"""kedge bench: samples per second of the engines on this machine, and what methods cost beside FedAvg."""

import platform
import typing
from collections.abc import Callable, Sequence
from functools import partial
from typing import Annotated

import torch
import typer

from kedge.bench.bench import Row, bench
from kedge.bench.candidates import candidates
from kedge.bench.diagnostics import Overhead, overheads
from kedge.bench.freezing import CLIENTS, Phase, agreements, freezing
from kedge.bench.methods import Cost, method_costs
from kedge.bench.networks import NETWORKS, Setting, Speed, fitting, speeds
from kedge.bench.packing import Packing, packing
from kedge.bench.peers.peers import Peer, compare
from kedge.bench.profile import Profile
from kedge.bench.workloads import DIAGNOSTICS, METHODS, PEERS, WORKLOADS, standard
from kedge.cli.bench_tables import (
    documents,
    phased,
    print_engines,
    print_freezing,
    print_methods,
    print_networks,
    print_overheads,
    print_packing,
    print_peers,
    print_profile,
    seen,
    told,
)
from kedge.cli.options import Debug, Json, console, guarded, say, show
from kedge.config.assemble import NO_CUDA, device_of
from kedge.config.experiment import EngineChoice
from kedge.config.schema import checked, parameters
from kedge.core.errors import RequestError, nearest
from kedge.engines.programs import bucket
from kedge.nn.precision import DTYPES, Precision

STANDARD = "standard-cnn"  # the network of freezing and packing


@guarded
def command(
    workloads: Annotated[
        list[str] | None,
        typer.Argument(
            help="overhead, compute: the engines; networks: standard CNN, ResNet-18, ResNet-20 at 1, 10, 100 "
            "clients; methods: every method's cost beside FedAvg; freezing: every phase of FedBug, Vanilla "
            "and Anti beside FedAvg (networks, methods and freezing take ten minutes or more); packing: runs "
            "of one client a round, alone and side by side; diagnostics: what measure.drift costs. Without "
            "it, overhead, compute and networks, each told as soon as it is measured. With --peers: "
            f"{', '.join(PEERS)}; without it, all of them."
        ),
    ] = None,
    device: Annotated[str, typer.Option(help="auto, cpu or cuda.")] = "auto",
    repeats: Annotated[int, typer.Option(help="Turns; the median is told.")] = 7,
    compiled: Annotated[
        bool,
        typer.Option("--compile/--no-compile", help="Measure the compiled engine too; freezing: it alone."),
    ] = True,
    networks: Annotated[str, typer.Option(help=f"For networks: some of {', '.join(NETWORKS)}.")] = ",".join(
        NETWORKS
    ),
    clients: Annotated[str, typer.Option(help="For networks: clients a round.")] = "1,10,100",
    precisions: Annotated[
        str,
        typer.Option(
            help="For networks and packing: tf32,bf16 on a GPU; for freezing: tf32 on a GPU; else fp32."
        ),
    ] = "",
    steps: Annotated[
        int,
        typer.Option(
            help="Local steps a round; for networks, freezing and packing 100 on a GPU, else 1 for networks "
            "and 2 for the others; for standard, with --peers, 10."
        ),
    ] = 0,
    runs: Annotated[int, typer.Option(help="For packing: how many train side by side.")] = 4,
    streams: Annotated[
        str,
        typer.Option(
            help="For networks and packing on a GPU: on how many streams, as in 1,2,10, the clients of a "
            "round, or the packed runs, train side by side; numbers that do not divide them are left out."
        ),
    ] = "1",
    profile: Annotated[
        bool,
        typer.Option(
            "--profile",
            help="For networks: after the timing, the largest kernels (on a CPU: operators) of every row.",
        ),
    ] = False,
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
    allowed = tuple(PEERS) if peers else (
        *WORKLOADS, "networks", METHODS.name, "freezing", "packing", DIAGNOSTICS.name,
    )  # fmt: skip
    for name in workloads or ():
        if name not in allowed:
            raise RequestError(
                f"kedge bench {name}: no such workload.{nearest(name, allowed)} "
                f"Allowed: {', '.join(allowed)}."
            )
    if repeats < 1:
        raise RequestError(f"--repeats {repeats}: need at least 1.")
    if runs < 2:
        raise RequestError(f"--runs {runs}: need at least 2 to train side by side.")
    wanted = checked(parameters(EngineChoice)["device"][0], device, "--device")
    where = device_of(EngineChoice(device=wanted))
    if wanted == "cuda" and where != "cuda":
        say(NO_CUDA)
    kinds(where, precisions)  # refused before anything is measured
    branches = numbers_of_streams(where, streams)
    settings, several = asked(where, networks, clients, precisions, steps)
    names = workloads or list(PEERS if peers else (*WORKLOADS, "networks"))
    if profile and "networks" not in names:
        raise RequestError("--profile: only networks are profiled; write kedge bench networks --profile.")
    if "networks" in names:
        check_streams(branches, [one.clients for one in settings])
    if "packing" in names:
        check_streams(branches, [runs])
    many, single = (Setting(STANDARD, count, local_steps(where, steps, 2)) for count in (CLIENTS, 1))
    machine = {
        "device": torch.cuda.get_device_name()
        if where == "cuda"
        else platform.processor() or platform.machine(),
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
    }

    def tell(table: Callable[..., None], *of: object) -> None:
        """At once, so that nothing is lost should what comes after it be stopped."""
        if not as_json:
            table(*of)

    rows: list[Row] = []
    others: list[Peer] = []
    for name in names:
        if peers:
            peer = standard(steps) if steps and name == "standard" else PEERS[name]
            others += (beside := compare([peer], where, repeats, compiled, say))
            tell(print_peers, peer, beside)
        elif name in WORKLOADS:
            rows += (own := bench([WORKLOADS[name]], where, repeats, compiled, say))
            tell(print_engines, WORKLOADS[name], own)
    costs: list[Cost] = []
    if METHODS.name in names:
        listed = candidates(len(METHODS.task("cpu").model.units))
        costs = method_costs(listed, METHODS, where, repeats, compiled, say)
        tell(print_methods, METHODS, costs)
    phases: list[Phase] = []
    if "freezing" in names:
        phases = freezing(many, kinds(where, precisions, "tf32"), where, repeats, compiled, say)
        tell(print_freezing, many, phases)
    packs: list[Packing] = []
    if "packing" in names:
        packs = packing(single, kinds(where, precisions, "tf32", "bf16"), where, runs, repeats, say, branches)
        tell(print_packing, single, packs)
    looks: list[Overhead] = []
    if DIAGNOSTICS.name in names:
        looks = overheads(DIAGNOSTICS, where, repeats, say)
        tell(print_overheads, DIAGNOSTICS, looks)
    found: list[Speed] = []
    profiles: list[Profile] = []
    if "networks" in names:  # last, since the profiler slows what is timed after it
        look = profiles.append if profile else None
        done = partial(tell, print_networks)
        found = speeds(settings, several, where, repeats, say, branches, look=look, done=done)
        for one in profiles:
            tell(print_profile, one)
    if as_json:
        show(
            {
                "machine": machine,
                "rows": [row._asdict() for row in rows],
                "networks": [row._asdict() for row in found],
                "profiles": seen(profiles),
                "methods": documents(costs),
                "freezing": phased(phases),
                "freezing_agreement": [one._asdict() for one in agreements(phases)],
                "packing": [row._asdict() for row in packs],
                "diagnostics": told(looks),
                "peers": [row._asdict() for row in others],
            }
        )
        return
    console().print(
        f"{machine['device']}, {machine['threads']} threads, torch {machine['torch']}", highlight=False
    )


def asked(
    device: str, networks: str, clients: str, precisions: str, steps: int
) -> tuple[list[Setting], list[Precision]]:
    """The settings and precisions that the options name."""
    names, counts = split(networks), split(clients)
    for name in names or [networks]:
        if name not in NETWORKS:
            raise RequestError(
                f"--networks {name}: no such network here.{nearest(name, NETWORKS)} "
                f"Allowed: {', '.join(NETWORKS)}."
            )
    for count in counts or [clients]:
        if not count.isdecimal() or int(count) < 1:
            raise RequestError(f"--clients {count}: need whole numbers of at least 1, as in 1,10,100.")
    local = local_steps(device, steps, 1)
    settings = [Setting(name, int(count), local) for name in names for count in counts]
    return settings, kinds(device, precisions, "tf32", "bf16")


def kinds(device: str, precisions: str, *usual: Precision) -> list[Precision]:
    """The precisions that the option names, else the usual ones of a GPU, or fp32."""
    gpu = device == "cuda"
    named = split(precisions) or (usual if gpu else ["fp32"])
    for kind in named:
        if kind not in DTYPES or (kind == "tf32" and not gpu):
            allowed = [known for known in DTYPES if gpu or known != "tf32"]
            raise RequestError(f"--precisions {kind}: allowed here: {', '.join(allowed)}.")
    return [known for known in typing.get_args(Precision) if known in named]


def numbers_of_streams(device: str, streams: str) -> list[int]:
    """The numbers that the option names, each once."""
    named = split(streams)
    for count in named or [streams]:
        if not count.isdecimal() or int(count) < 1:
            raise RequestError(f"--streams {count}: need whole numbers of at least 1, as in 1,2,10.")
        if int(count) > 1 and device != "cuda":
            raise RequestError(f"--streams {count}: more than 1 needs a CUDA device.")
    return sorted({int(count) for count in named})


def check_streams(streams: Sequence[int], clients: Sequence[int]) -> None:
    """Raise where none of the numbers fits any round."""
    if not any(fitting(streams, count) for count in clients):
        rows = " or ".join(str(count) for count in sorted({bucket(count) for count in clients}))
        named = ",".join(map(str, streams))
        raise RequestError(
            f"--streams {named}: a round has {rows} rows here; need a number that divides them."
        )


def local_steps(device: str, steps: int, few: int) -> int:
    """The local steps that the option names, else 100 on a GPU, or a few."""
    if steps < 0:
        raise RequestError(f"--steps {steps}: need at least 1.")
    return steps or (100 if device == "cuda" else few)


def split(text: str) -> list[str]:
    """The parts of a comma-separated list."""
    return [part.strip() for part in text.split(",") if part.strip()]
