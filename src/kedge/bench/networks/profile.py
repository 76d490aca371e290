"""Profile a round: the kernels of a GPU, or operators of a CPU, that take the most time of a local step.

A local step is a step of all clients, for every way to train, so that profiles can be compared. GPU times are
the kernels' own and add up over streams, without waiting. CPU times are the operators' own; the time between
them is an entry.
"""

from typing import NamedTuple

from torch.autograd.profiler_util import FunctionEventAvg
from torch.profiler import ProfilerActivity, profile, record_function

from kedge.bench.rounds import Round
from kedge.bench.timing import WARM_UP_ROUNDS, synchronize
from kedge.nn.precision import Precision
from kedge.torch_private import DeviceType

LARGEST = 12  # entries; the rest is one more
BETWEEN = "between operators"


class Kernel(NamedTuple):
    """A kernel or operator in the mean of a round's local steps."""

    name: str
    calls: float
    microseconds: float
    share: float  # of the round


class Profile(NamedTuple):
    """A round of one way to train; no kernels if the profiler recorded none."""

    network: str
    clients: int
    how: str
    precision: Precision
    steps: int
    kernels: list[Kernel]


def profile_round(round: Round, device: str, steps: int) -> list[Kernel]:
    """Profile a warm round of `steps` local steps: its kernels, largest first."""
    activity = ProfilerActivity.CUDA if device == "cuda" else ProfilerActivity.CPU
    with profile(activities=[activity], acc_events=True) as profiler:  # else torch warns of cleared events
        with record_function(BETWEEN):
            round(WARM_UP_ROUNDS)
        synchronize(device)
    averages = profiler.key_averages()
    return largest([entry for event in averages for entry in entries(event, device)], steps)


def entries(event: FunctionEventAvg, device: str) -> list[tuple[str, int, float]]:
    """Name, calls and microseconds of an event; [] if it took no time or, on a GPU, is not a kernel."""
    if device != "cuda":
        taken = event.self_cpu_time_total
    elif event.device_type == DeviceType.CUDA and not event.is_user_annotation:
        taken = event.device_time_total
    else:
        return []
    return [(str(event.key), event.count, float(taken))] if taken > 0 else []


def largest(found: list[tuple[str, int, float]], steps: int) -> list[Kernel]:
    """The largest entries, and the sum of all others as the last entry."""
    ordered = sorted(found, key=lambda entry: -entry[2])
    total = sum(taken for _, _, taken in ordered)
    shown, rest = ordered[:LARGEST], ordered[LARGEST:]
    if rest:
        calls, taken = sum(calls for _, calls, _ in rest), sum(taken for *_, taken in rest)
        shown.append((f"everything else ({len(rest)})", calls, taken))
    return [Kernel(name, calls / steps, taken / steps, taken / total) for name, calls, taken in shown]
