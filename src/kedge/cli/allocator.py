"""Configure the C library's allocator so that it keeps freed memory.

Training frees and allocates the same megabytes in every step. By default glibc may return them to the system
in between, depending on the layout of the heap, and page faults can then take a fifth of a round. Only the
command line changes the allocator; `import kedge` does not.
"""

import ctypes
import sys

M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3  # malloc.h
KEPT, MAPPED = 1 << 30, 32 << 20  # bytes kept at the end of the heap; size from which a block is mapped


def keep_freed_memory() -> None:
    """Set glibc's thresholds so that it does not trim the heap; no effect with other C libraries."""
    if sys.platform != "linux":
        return
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)  # other C libraries have none
    if mallopt:
        mallopt(M_TRIM_THRESHOLD, KEPT)
        mallopt(M_MMAP_THRESHOLD, MAPPED)
