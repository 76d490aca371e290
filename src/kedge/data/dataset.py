"""Dataset and Source: checked, labeled samples, and the constants that normalize them.

Samples keep their dtype (uint8 images stay uint8). Damaged samples are refused here with their row, before
they can become NaN in training.
"""

import math
from dataclasses import dataclass, field, replace
from typing import Literal

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from kedge.core.errors import DataError, RequestError

WIDER = {
    "uint16": "int32",
    "uint32": "int64",
    "uint64": "int64",
}  # torch supports few operations on the unsigned types


@dataclass(frozen=True, eq=False, init=False)
class Dataset:
    """Finite samples x [n, ...] in their own dtype, and class labels y [n] as int64."""

    x: Tensor
    y: Tensor

    def __init__(self, x: Tensor | ArrayLike, y: Tensor | ArrayLike) -> None:
        samples, labels = _tensor("x", x).contiguous(), _tensor("y", y)
        if samples.dim() < 2 or labels.dim() != 1 or len(samples) != len(labels) or not samples.numel():
            raise DataError(
                f"x has shape {tuple(samples.shape)} and y {tuple(labels.shape)}; need x of shape [n, ...] "
                "and y of shape [n] with the same n ≥ 1. A single feature is a column, [n, 1]."
            )
        if samples.is_floating_point() and not (finite := torch.isfinite(samples.flatten(1)).all(1)).all():
            row = int((~finite).nonzero()[0])
            raise DataError(f"x is NaN or infinite in row {row}; repair or drop that row.")
        valid = (labels == labels.to(torch.int64)) & (labels >= 0)
        if not valid.all():
            row = int((~valid).nonzero()[0])
            raise DataError(
                f"y is {labels[row].item()} in row {row}; need class labels 0, 1, 2, ... as integers."
            )
        object.__setattr__(self, "x", samples)
        object.__setattr__(self, "y", labels.to(torch.int64).contiguous())

    def __len__(self) -> int:
        return len(self.y)


def _tensor(name: str, values: Tensor | ArrayLike) -> Tensor:
    if isinstance(values, Tensor):
        tensor = values.detach()
    else:
        try:
            array = np.asarray(values)
            native = array.astype(WIDER.get(array.dtype.name, array.dtype.newbyteorder("=").str), copy=False)
            tensor = torch.from_numpy(np.require(native, requirements=["C", "W"]))
        except (TypeError, ValueError) as error:
            raise DataError(
                f"{name} is not an array of numbers ({error}); give a tensor, a numpy array "
                "or a list of numbers."
            ) from error
    if tensor.is_complex() or tensor.dtype == torch.bool:
        raise DataError(f"{name} is {tensor.dtype}; need floating point or integers.")
    return tensor


@dataclass(frozen=True, eq=False)
class Source:
    """A dataset with its test set. Network inputs are (scale · x − mean) / std.

    `mean` and `std` have one entry per channel (x.shape[1]), or one for all. `keys` are natural groups of the
    training samples, such as their subject; `test_keys` are those of the test samples if they are known.
    """

    name: str
    train: Dataset
    test: Dataset
    classes: int
    mean: tuple[float, ...] = (0.0,)
    std: tuple[float, ...] = (1.0,)
    scale: float = 1.0
    keys: dict[str, NDArray[np.generic]] = field(default_factory=dict)
    test_keys: dict[str, NDArray[np.generic]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.train.x.shape[1:] != self.test.x.shape[1:] or self.train.x.dtype != self.test.x.dtype:
            raise DataError(
                f"{self.name}: train samples are {self.train.x.dtype} {tuple(self.train.x.shape[1:])}, test "
                f"samples {self.test.x.dtype} {tuple(self.test.x.shape[1:])}; need the same."
            )
        channels = self.train.x.shape[1]
        if {len(self.mean), len(self.std)} - {1, channels} or min(self.std) <= 0:
            raise DataError(
                f"{self.name}: mean {self.mean} and std {self.std} for {channels} channels; need one entry "
                "per channel or one for all, and std > 0."
            )
        for part, data in (("train", self.train), ("test", self.test)):
            if (beyond := data.y >= self.classes).any():
                row = int(beyond.nonzero()[0])
                raise DataError(
                    f"{self.name}: label {int(data.y[row])} in row {row} of {part}, but there are "
                    f"{self.classes} classes; need labels 0..{self.classes - 1}."
                )


def normalized(source: Source, normalize: Literal["dataset"] | tuple[float, float] = "dataset") -> Source:
    """The source with this mean and standard deviation for all channels instead of the dataset's own."""
    if normalize == "dataset":
        return source
    mean, std = normalize
    if not (math.isfinite(mean) and 0 < std < math.inf):
        raise RequestError(
            f"data.normalize = [{mean}, {std}]: need a mean and a standard deviation > 0, both finite; or "
            "'dataset' for the dataset's own."
        )
    return replace(source, mean=(mean,), std=(std,))
