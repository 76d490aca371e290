"""Options of kedge bench, and the checked plan of its measurements."""

import typing
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from kedge.bench.networks.setting import NETWORKS, Setting
from kedge.bench.networks.ways import dividing
from kedge.bench.timing import Timing
from kedge.bench.workloads import DIAGNOSTICS, METHODS, PEERS, WORKLOADS
from kedge.cli.output import print_message
from kedge.config.assemble import NO_CUDA, device_of
from kedge.config.experiment import EngineChoice
from kedge.config.schema import parameters, typed_value
from kedge.core.errors import RequestError, nearest
from kedge.engines.stack.programs import bucket
from kedge.nn.precision import DTYPES, Precision

STANDARD = "standard-cnn"  # the network of freezing and packing


class Options(NamedTuple):
    """The options of the command, as typed."""

    device: str
    repeats: int
    compiled: bool
    networks: str
    clients: str
    precisions: str
    steps: int
    runs: int
    streams: str
    profile: bool
    peers: bool


@dataclass(frozen=True)
class Plan:
    """The workloads to measure and their settings, after all checks."""

    names: Sequence[str]  # of workloads
    options: Options
    device: str  # cpu or cuda
    settings: Sequence[Setting]  # of networks
    precisions: Sequence[Precision]  # of networks
    streams: Sequence[int]

    @property
    def timing(self) -> Timing:
        """The settings of all measurements."""
        return Timing(self.device, self.options.repeats, self.options.compiled, print_message)

    def setting(self, clients: int) -> Setting:
        """The standard network with `clients` clients in each round."""
        return Setting(STANDARD, clients, local_steps(self.device, self.options.steps, 2))

    def precisions_or(self, *defaults: Precision) -> list[Precision]:
        """The precisions of the option --precisions, or on a GPU `defaults`."""
        return chosen_precisions(self.device, self.options.precisions, *defaults)


def plan_of(workloads: Sequence[str], options: Options) -> Plan:
    """Check the names of workloads and the options, and return the plan."""
    check_workloads(workloads, options.peers)
    if options.repeats < 1:
        raise RequestError(f"--repeats {options.repeats}: need at least 1.")
    if options.runs < 2:
        raise RequestError(f"--runs {options.runs}: need at least 2 to train side by side.")
    device = chosen_device(options.device)
    precisions = chosen_precisions(device, options.precisions, "tf32", "bf16")
    streams = stream_counts(device, options.streams)
    settings = network_settings(device, options.networks, options.clients, options.steps)
    names = workloads or list(PEERS if options.peers else (*WORKLOADS, "networks"))
    if options.profile and "networks" not in names:
        raise RequestError("--profile: only networks are profiled; write kedge bench networks --profile.")
    if "networks" in names:
        check_streams(streams, [setting.clients for setting in settings])
    if "packing" in names:
        check_streams(streams, [options.runs])
    return Plan(names, options, device, settings, precisions, streams)


def check_workloads(names: Sequence[str], peers: bool) -> None:
    """Raise if a workload does not exist."""
    allowed = tuple(PEERS) if peers else (
        *WORKLOADS, "networks", METHODS.name, "freezing", "packing", DIAGNOSTICS.name,
        "federation",
    )  # fmt: skip
    for name in names:
        if name not in allowed:
            raise RequestError(
                f"kedge bench {name}: no such workload.{nearest(name, allowed)} "
                f"Allowed: {', '.join(allowed)}."
            )


def chosen_device(device: str) -> str:
    """The device of the option; print a message if there is no CUDA device."""
    requested = typed_value(parameters(EngineChoice)["device"][0], device, "--device")
    available = device_of(EngineChoice(device=requested))
    if requested == "cuda" and available != "cuda":
        print_message(NO_CUDA)
    return available


def network_settings(device: str, networks: str, clients: str, steps: int) -> list[Setting]:
    """The settings of the options --networks, --clients and --steps."""
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
    return [Setting(name, int(count), local) for name in names for count in counts]


def chosen_precisions(device: str, precisions: str, *defaults: Precision) -> list[Precision]:
    """The precisions of the option --precisions; without it `defaults` on a GPU, and fp32 on a CPU."""
    gpu = device == "cuda"
    chosen = split(precisions) or (defaults if gpu else ["fp32"])
    for precision in chosen:
        if precision not in DTYPES or (precision == "tf32" and not gpu):
            allowed = [known for known in DTYPES if gpu or known != "tf32"]
            raise RequestError(f"--precisions {precision}: allowed here: {', '.join(allowed)}.")
    return [known for known in typing.get_args(Precision) if known in chosen]


def stream_counts(device: str, streams: str) -> list[int]:
    """The numbers of streams in the option, each once."""
    named = split(streams)
    for count in named or [streams]:
        if not count.isdecimal() or int(count) < 1:
            raise RequestError(f"--streams {count}: need whole numbers of at least 1, as in 1,2,10.")
        if int(count) > 1 and device != "cuda":
            raise RequestError(f"--streams {count}: more than 1 needs a CUDA device.")
    return sorted({int(count) for count in named})


def check_streams(streams: Sequence[int], clients: Sequence[int]) -> None:
    """Raise if no number of streams divides the rows of any round."""
    if not any(dividing(streams, count) for count in clients):
        rows = " or ".join(str(count) for count in sorted({bucket(count) for count in clients}))
        named = ",".join(map(str, streams))
        raise RequestError(
            f"--streams {named}: a round has {rows} rows here; need a number that divides them."
        )


def local_steps(device: str, steps: int, cpu_default: int) -> int:
    """The local steps of the option --steps; without it 100 on a GPU, and `cpu_default` on a CPU."""
    if steps < 0:
        raise RequestError(f"--steps {steps}: need at least 1.")
    return steps or (100 if device == "cuda" else cpu_default)


def split(text: str) -> list[str]:
    """The parts of a comma-separated list."""
    return [part.strip() for part in text.split(",") if part.strip()]
