"""The C library's allocator, told to keep freed memory.

Training frees and takes the same megabytes at every step. By default glibc gives them back to the system in
between, or not, depending on how the heap happens to lie: a fifth of a round can go into page faults. The
command line owns its process, so it may choose; as a library kedge leaves the allocator alone.
"""

import ctypes
import sys

M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3  # malloc.h
KEPT, MAPPED = 1 << 30, 32 << 20  # bytes kept at the end of the heap; larger blocks are mapped on their own


def keep_freed_memory() -> None:
    """Ask glibc not to trim; elsewhere nothing happens."""
    if sys.platform != "linux":
        return
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)  # other C libraries have none
    if mallopt:
        mallopt(M_TRIM_THRESHOLD, KEPT)
        mallopt(M_MMAP_THRESHOLD, MAPPED)
