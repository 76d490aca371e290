"""Safetensors files that are written and read one tensor at a time.

A file has the length of its header, the header as JSON, and the tensors one after another: wide dtypes first,
then in the order of their names. `write_tensors` writes the bytes that the library's `save_file` writes, but
that function needs all tensors in memory.
"""

import json
import os
from collections.abc import Iterator, Mapping
from itertools import groupby
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors import safe_open
from torch import Tensor

from kedge.core.lazy_tree import LazyTree
from kedge.core.tree import Tree, unflatten

ALIGNMENT = 8  # the header is padded to a multiple of it
DTYPES = {  # their names in a header, in the order of the file
    torch.uint64: "U64", torch.int64: "I64", torch.float64: "F64", torch.complex64: "C64",
    torch.float32: "F32", torch.uint32: "U32", torch.int32: "I32", torch.bfloat16: "BF16",
    torch.float16: "F16", torch.uint16: "U16", torch.int16: "I16", torch.int8: "I8", torch.uint8: "U8",
    torch.bool: "BOOL",
}  # fmt: skip
ORDER = list(DTYPES)


class Place(NamedTuple):
    """A tensor of a tree, without its values: the keys on its path, its dtype and shape."""

    path: tuple[str, ...]
    dtype: torch.dtype
    shape: tuple[int, ...]
    size: int  # in bytes

    @property
    def name(self) -> str:
        """Its name in the file."""
        return "/".join(self.path)


def write_tensors(path: Path, tree: Tree) -> None:
    """Write and sync the tensors of a tree; an entry of a LazyTree is in memory only while it is written."""
    ordered = sorted(places(tree), key=lambda place: (ORDER.index(place.dtype), place.name))
    try:
        with path.open("wb") as file:
            file.write(header(ordered))
            for above, group in groupby(ordered, key=lambda place: place.path[:2]):
                part = entry(tree, above)  # a client's memory is read once for its tensors of a dtype
                for place in group:
                    file.write(content(entry(part, place.path[2:])))
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(path)) from error


def places(tree: Tree, above: tuple[str, ...] = ()) -> Iterator[Place]:
    """The tensors of a tree, without their values."""
    for key, value in tree.items():
        if isinstance(value, Mapping):
            yield from places(value, (*above, key))
        else:
            yield Place((*above, key), value.dtype, tuple(value.shape), value.numel() * value.element_size())


def header(ordered: list[Place]) -> bytes:
    """The first bytes of a file with these tensors."""
    end, rows = 0, {}
    for place in ordered:
        start, end = end, end + place.size
        dtype = DTYPES[place.dtype]
        rows[place.name] = {"dtype": dtype, "shape": list(place.shape), "data_offsets": [start, end]}
    text = json.dumps(rows, ensure_ascii=False, separators=(",", ":")).encode()
    text += b" " * (-len(text) % ALIGNMENT)
    return len(text).to_bytes(8, "little") + text


def entry(tree: Any, path: tuple[str, ...]) -> Any:
    """The entry of a tree at a path."""
    for key in path:
        tree = tree[key]
    return tree


def content(tensor: Tensor) -> memoryview:
    """The bytes of a tensor; a copy only if it is on a GPU or not contiguous."""
    values = tensor.detach().to("cpu").contiguous().reshape(-1)
    data: memoryview = values.view(torch.uint8).numpy().data
    return data


def read_tensors(path: Path, lazily: str) -> dict[str, Any]:
    """The tree in a file; the entries of its group `lazily` are read when they are used."""
    with safe_open(path, "pt") as file:
        names = list(file.offset_keys())
        first = [name for name in names if not name.startswith(f"{lazily}/")]
        tree = unflatten({name: file.get_tensor(name).clone() for name in first})
    entries: dict[str, list[str]] = {}
    for name in names:
        if name.startswith(f"{lazily}/"):
            entries.setdefault(name.split("/")[1], []).append(name)

    def read(key: str) -> Any:
        with safe_open(path, "pt") as file:
            tensors = {name: file.get_tensor(name).clone() for name in entries[key]}
        return entry(unflatten(tensors), (lazily, key))

    return {**tree, **({lazily: LazyTree(entries, read)} if entries else {})}
