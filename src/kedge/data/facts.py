"""Per-client constants that an algorithm may use: numbers of samples, and samples per class."""

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor


def facts(labels: NDArray[np.integer], clients: list[NDArray[np.int64]], classes: int) -> dict[str, Tensor]:
    """Float64 tensors with one row for each of the m clients.

    `examples` [m] is n_i, `relative_size` [m] is n_i·m / Σn (1 for equal clients), `class_counts` is
    [m, classes].
    """
    by_client = [np.bincount(labels[samples], minlength=classes) for samples in clients]
    counts = np.array(by_client, dtype=np.float64)
    examples = counts.sum(axis=1)
    return {
        "examples": torch.from_numpy(examples),
        "relative_size": torch.from_numpy(examples * len(clients) / examples.sum()),
        "class_counts": torch.from_numpy(counts),
    }
