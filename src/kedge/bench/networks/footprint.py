"""Measure memory: PyTorch's allocations on a GPU, the growth of the process on a CPU.

The memory of a process is read from Linux's /proc. On other systems the functions return None.
"""

import ctypes
import gc
import sys
from pathlib import Path

import torch

PROCESS = Path("/proc/self/status")
RESET_PEAK = Path("/proc/self/clear_refs")
MACHINE = Path("/proc/meminfo")
CONTAINER = Path("/sys/fs/cgroup")


def start_watch(device: str) -> int | None:
    """Reset the peak of the memory in use. Return the bytes that are in use now."""
    if device == "cuda":
        torch.cuda.reset_peak_memory_stats()
        return torch.cuda.memory_allocated()
    if sys.platform != "linux":
        return None
    gc.collect()
    if trim := getattr(ctypes.CDLL(None), "malloc_trim", None):  # only in glibc
        trim(0)  # return freed memory to the system, so that its next use counts
    try:
        RESET_PEAK.write_text("5")
    except OSError:
        return None
    return line_bytes(PROCESS, "VmRSS")


def growth(device: str, before: int | None) -> int | None:
    """Bytes at the peak since `start_watch`, above the bytes `before`."""
    peak = torch.cuda.max_memory_allocated() if device == "cuda" else line_bytes(PROCESS, "VmHWM")
    return None if before is None or peak is None else peak - before


def free_bytes(device: str) -> int | None:
    """Free memory of the machine and its container; None for a GPU, which raises an error when it is full."""
    free = None if device == "cuda" else line_bytes(MACHINE, "MemAvailable")
    if free is None:
        return None
    try:
        limit, used = (int((CONTAINER / name).read_text()) for name in ("memory.max", "memory.current"))
        statistics = dict(line.split() for line in (CONTAINER / "memory.stat").read_text().splitlines())
    except (OSError, ValueError):  # no container, or a container without a limit ("max")
        return free
    cached = int(statistics.get("inactive_file", 0))  # the system frees it on demand
    return min(free, limit - used + cached)


def line_bytes(file: Path, name: str) -> int | None:
    """The bytes of a line "name: number kB"."""
    if not file.exists():
        return None
    lines = dict(line.split(":", 1) for line in file.read_text().splitlines() if ":" in line)
    return int(lines[name].split()[0]) * 1024 if name in lines else None
