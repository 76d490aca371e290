"""Files of tensors have the bytes of the library's, and one client's memory is in memory at a time."""

import weakref
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from torch import Tensor

from kedge.core.lazy_tree import LazyTree
from kedge.core.tree import flatten
from kedge.running.folders.tensor_file import DTYPES, read_tensors, write_tensors


def values(dtype: torch.dtype, *shape: int) -> Tensor:
    """Values that are all different."""
    count = torch.tensor(shape).prod() if shape else torch.tensor(1)
    return (torch.arange(int(count)) % 2 if dtype == torch.bool else torch.arange(int(count))).to(dtype)


def every_kind() -> dict[str, Any]:
    """A tree with every dtype, scalars, empty tensors, transposed tensors and names that JSON escapes."""
    kinds = {f"{name} {shape}": values(dtype, *shape).reshape(shape) for dtype, name in DTYPES.items()
             for shape in ((), (3,), (2, 0), (5, 2))}  # fmt: skip
    odd = {'quote " and \\ and é and \n': torch.ones(3), "transposed": torch.arange(6.0).reshape(2, 3).T}
    return {"server": {"shared": kinds, "odd": odd}, "clients": {"10": {"w": torch.ones(2)}, "9": odd}}


def test_a_file_has_the_bytes_that_the_library_writes(tmp_path: Path) -> None:
    tree = every_kind()
    write_tensors(tmp_path / "ours", tree)
    contiguous = {name: v.clone(memory_format=torch.contiguous_format) for name, v in flatten(tree).items()}
    assert (tmp_path / "ours").read_bytes() == safetensors.torch.save(contiguous)
    write_tensors(tmp_path / "flat", flatten(tree))
    assert (tmp_path / "flat").read_bytes() == (tmp_path / "ours").read_bytes()
    write_tensors(tmp_path / "empty", {})
    assert (tmp_path / "empty").read_bytes() == safetensors.torch.save({})


def test_what_is_read_is_what_was_written(tmp_path: Path) -> None:
    tree = every_kind()
    write_tensors(tmp_path / "file", tree)
    found = read_tensors(tmp_path / "file", lazily="clients")
    assert isinstance(found["clients"], LazyTree)
    assert isinstance(found["server"], dict)
    left, right = flatten(tree), flatten(found)
    assert left.keys() == right.keys()
    assert all(v.dtype == right[k].dtype and torch.equal(v, right[k]) for k, v in left.items())


class Counted:
    """Memories of clients, and the largest number of them that existed at a time."""

    def __init__(self) -> None:
        self.present: weakref.WeakSet[Tensor] = weakref.WeakSet()
        self.most = 0

    def tree(self, clients: int) -> LazyTree:
        def read(name: str) -> dict[str, Any]:
            memory = {"w": torch.full((100,), float(name)), "n": torch.tensor([int(name)])}
            self.present.add(memory["w"])
            self.most = max(self.most, len(self.present))
            return {"slots": memory}

        return LazyTree(map(str, range(clients)), read)


def test_one_client_is_in_memory_while_a_file_is_written(tmp_path: Path) -> None:
    alive = Counted()
    write_tensors(tmp_path / "file", {"clients": alive.tree(50)})
    assert alive.most <= 2  # the next one is read before the last one is dropped
    found = read_tensors(tmp_path / "file", lazily="clients")["clients"]
    assert sorted(map(int, found)) == list(range(50))
    assert all(torch.equal(found[name]["slots"]["w"], torch.full((100,), float(name))) for name in found)
