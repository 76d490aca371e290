"""A limit on the GPU memory of this process, for workers that share a GPU."""

import torch


def limit_gpu_memory(share: float) -> None:
    """Let torch allocate at most this share of the GPU's memory, until the limit is set again."""
    torch.cuda.set_per_process_memory_fraction(share)
