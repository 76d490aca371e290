"""Where the time of a round goes: the largest kernels of a GPU, or operators of a CPU, by local step.

A local step is one of all clients, also where they go one after another, so that ways to train the same
setting can be laid side by side. On a GPU times are the kernels' own and add up over streams; waiting is not
in them. On a CPU they are the operators' own, and what lies between them is an entry too.
"""

from typing import NamedTuple

from torch.autograd.profiler_util import FunctionEventAvg
from torch.profiler import ProfilerActivity, profile, record_function

from kedge.bench.bench import synchronize
from kedge.bench.loops import Round
from kedge.nn.precision import Precision
from kedge.torch_private import DeviceType

LARGEST = 12
BETWEEN = "between operators"
NUMBER = 2  # of the round that is profiled: the first after a warm-up


class Kernel(NamedTuple):
    """A kernel or an operator; what is not among the largest is one entry, the last."""

    name: str
    calls: float  # a local step
    microseconds: float  # a local step
    share: float  # of all of the round


class Profile(NamedTuple):
    """A round of one way to train; no kernels where the profiler saw none."""

    network: str
    clients: int
    how: str
    precision: Precision
    steps: int
    kernels: list[Kernel]


def by_kernel(round: Round, device: str, steps: int) -> list[Kernel]:
    """What a round of so many local steps is made of, the largest first; the round must be warm."""
    kind = ProfilerActivity.CUDA if device == "cuda" else ProfilerActivity.CPU
    with profile(activities=[kind], acc_events=True) as seen:  # else torch warns that it clears them
        with record_function(BETWEEN):
            round(NUMBER)
        synchronize(device)
    return largest([entry for found in seen.key_averages() for entry in entries(found, device)], steps)


def entries(found: FunctionEventAvg, device: str) -> list[tuple[str, int, float]]:
    """Name, calls and microseconds, if it took time on this device; on a GPU named ranges are no kernels."""
    if device != "cuda":
        taken = found.self_cpu_time_total
    elif found.device_type == DeviceType.CUDA and not found.is_user_annotation:
        taken = found.device_time_total
    else:
        return []
    return [(str(found.key), found.count, float(taken))] if taken > 0 else []


def largest(found: list[tuple[str, int, float]], steps: int) -> list[Kernel]:
    """The largest, and everything else in one; shares are of all."""
    ordered = sorted(found, key=lambda one: -one[2])
    total = sum(taken for _, _, taken in ordered)
    some, rest = ordered[:LARGEST], ordered[LARGEST:]
    if rest:
        some.append((f"everything else ({len(rest)})", sum(n for _, n, _ in rest), sum(t for *_, t in rest)))
    return [Kernel(name, calls / steps, taken / steps, taken / total) for name, calls, taken in some]
