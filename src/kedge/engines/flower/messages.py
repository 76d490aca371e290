"""Messages of a federation: a kind, plain facts, and named tensors. Nothing in them is executed or unpickled.

A tensor is sent as its bytes in the machine's order (little-endian everywhere kedge runs), with dtype and
shape. A message's arrays therefore have exactly the bytes that `kedge cost` counts.
"""

import math
import sys
from collections.abc import Mapping
from typing import NamedTuple

import torch
from torch import Tensor

from kedge.core.tree import Leaves, Tree, flatten
from kedge.engines.flower.flwr_private import Array, ArrayRecord, ConfigRecord, RecordDict

Fact = int | float | str | bool | list[int] | list[float] | list[str]
Facts = dict[str, Fact]

STORAGE = "kedge.bytes"
DTYPES = {
    str(dtype).removeprefix("torch."): dtype
    for dtype in (
        torch.float64,
        torch.float32,
        torch.float16,
        torch.bfloat16,
        torch.int64,
        torch.int32,
        torch.int16,
        torch.int8,
        torch.uint8,
        torch.bool,
    )
}

assert sys.byteorder == "little"


class MessageError(ValueError):
    """A message from the network is not of the expected form."""


class Content(NamedTuple):
    """The content of a message."""

    kind: str
    facts: Facts
    tensors: Leaves  # by path

    @property
    def nbytes(self) -> int:
        """The bytes of the tensors."""
        return tensor_bytes(self.tensors)

    def integer(self, name: str) -> int:
        """A fact that is an integer of at least 0."""
        value = self.facts.get(name)
        if not isinstance(value, int) or isinstance(value, bool) or value < 0:
            raise MessageError(f"its {name} is {value!r}, not an integer of at least 0")
        return value

    def number(self, name: str) -> float:
        """A fact that is a finite number."""
        value = self.facts.get(name)
        if not isinstance(value, float) or not math.isfinite(value):
            raise MessageError(f"its {name} is {value!r}, not a finite number")
        return value

    def text(self, name: str) -> str:
        """A fact that is a text."""
        value = self.facts.get(name)
        if not isinstance(value, str):
            raise MessageError(f"its {name} is {value!r}, not a text")
        return value

    def flag(self, name: str) -> bool:
        """A fact that is true or false."""
        value = self.facts.get(name)
        if not isinstance(value, bool):
            raise MessageError(f"its {name} is {value!r}, not true or false")
        return value

    def names(self, name: str) -> frozenset[str]:
        """A fact that is a list of names."""
        value = self.facts.get(name)
        if not isinstance(value, list) or not all(isinstance(v, str) for v in value):
            raise MessageError(f"its {name} is {value!r}, not a list of names")
        return frozenset(map(str, value))

    def numbers(self, name: str) -> list[float]:
        """A fact that is a list of numbers."""
        value = self.facts.get(name)
        if not isinstance(value, list) or not all(isinstance(v, float) for v in value):
            raise MessageError(f"its {name} is {value!r}, not a list of numbers")
        return [float(v) for v in value]


class Request(NamedTuple):
    """A message to be sent: a kind, plain facts, tensors by path."""

    kind: str
    facts: Facts
    tensors: Leaves


def tensor_bytes(tensors: Mapping[str, Tensor]) -> int:
    """The bytes of tensors."""
    return sum(v.numel() * v.element_size() for v in tensors.values())


def to_record(kind: str, facts: Mapping[str, Fact], tensors: Tree) -> RecordDict:
    """The record that Flower sends for a message."""
    arrays = {path: to_array(v) for path, v in flatten(tensors).items()}
    return RecordDict({"facts": ConfigRecord({"kind": kind, **facts}), "tensors": ArrayRecord(arrays)})


def to_array(tensor: Tensor) -> Array:
    """A tensor as Flower's array: its bytes, dtype and shape."""
    name = str(tensor.dtype).removeprefix("torch.")
    if name not in DTYPES:
        raise MessageError(f"a tensor of dtype {name} cannot be sent; kedge sends {', '.join(DTYPES)}.")
    values = tensor.detach().cpu().contiguous().reshape(-1)
    data = values.view(torch.uint8).numpy().tobytes() if values.numel() else b""
    return Array(dtype=name, shape=tuple(tensor.shape), stype=STORAGE, data=data)


def from_record(record: RecordDict) -> Content:
    """The content of a received record; raise MessageError if it is not a message of kedge."""
    if set(record) != {"facts", "tensors"}:
        raise MessageError(f"its records are {', '.join(map(str, record)) or 'none'}, not facts and tensors")
    facts, arrays = record["facts"], record["tensors"]
    if not isinstance(facts, ConfigRecord) or not isinstance(arrays, ArrayRecord):
        raise MessageError("its facts are no ConfigRecord, or its tensors no ArrayRecord")
    values = dict(facts)
    kind = values.pop("kind", None)
    if not isinstance(kind, str):
        raise MessageError("it has no kind")
    if any(isinstance(v, bytes) for v in values.values()):
        raise MessageError("a fact has bytes")
    return Content(kind, values, {path: to_tensor(path, array) for path, array in arrays.items()})  # type: ignore[arg-type]  # no bytes: checked above


def to_tensor(path: str, array: Array) -> Tensor:
    """The tensor of a received array; raise MessageError if its bytes do not fit its dtype and shape."""
    dtype = DTYPES.get(array.dtype)
    if dtype is None or array.stype != STORAGE:
        raise MessageError(f"{path} has the dtype {array.dtype!r} and the storage {array.stype!r}")
    shape = tuple(int(n) for n in array.shape)
    count = torch.Size(shape).numel()
    if any(n < 0 for n in shape) or len(array.data) != count * dtype.itemsize:
        raise MessageError(f"{path} has {len(array.data)} bytes for {array.dtype} of shape {shape}")
    if not count:
        return torch.empty(shape, dtype=dtype)
    return torch.frombuffer(bytearray(array.data), dtype=dtype).reshape(shape)
