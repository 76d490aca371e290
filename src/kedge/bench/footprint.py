"""Memory that work takes: of a GPU what torch allocates, of a CPU what the process holds more at its peak.

Of a process Linux tells (/proc); elsewhere nobody is asked, and the answer is None.
"""

import ctypes
import gc
import sys
from pathlib import Path

import torch

PROCESS = Path("/proc/self/status")
FORGET_PEAK = Path("/proc/self/clear_refs")
MACHINE = Path("/proc/meminfo")
GROUP = Path("/sys/fs/cgroup")  # of a container


def watched(device: str) -> int | None:
    """Begin to watch for the most that is held; what is held now."""
    if device == "cuda":
        torch.cuda.reset_peak_memory_stats()
        return torch.cuda.memory_allocated()
    if sys.platform != "linux":
        return None
    gc.collect()
    if trim := getattr(ctypes.CDLL(None), "malloc_trim", None):  # other C libraries have none
        trim(0)  # what was freed before would be taken again unseen
    try:
        FORGET_PEAK.write_text("5")
    except OSError:
        return None
    return stated(PROCESS, "VmRSS")


def most(device: str, before: int | None) -> int | None:
    """The most that was held since, more than before."""
    peak = torch.cuda.max_memory_allocated() if device == "cuda" else stated(PROCESS, "VmHWM")
    return None if before is None or peak is None else peak - before


def free(device: str) -> int | None:
    """What is left to a process on the CPU: of the machine, and of its container. A GPU is not asked."""
    left = None if device == "cuda" else stated(MACHINE, "MemAvailable")
    if left is None:
        return None
    try:
        limit, used = (int((GROUP / name).read_text()) for name in ("memory.max", "memory.current"))
        cached = dict(line.split() for line in (GROUP / "memory.stat").read_text().splitlines())
    except (OSError, ValueError):  # no container, or one without a limit ("max")
        return left
    return min(left, limit - used + int(cached.get("inactive_file", 0)))


def stated(file: Path, name: str) -> int | None:
    """The bytes of a line "name: number kB"."""
    if not file.exists():
        return None
    lines = dict(line.split(":", 1) for line in file.read_text().splitlines() if ":" in line)
    return int(lines[name].split()[0]) * 1024 if name in lines else None
