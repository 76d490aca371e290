"""A LazyTree reads an entry each time it is used, and keeps none."""

import pytest
import torch

from kedge.core.lazy_tree import LazyTree
from kedge.core.tree import flatten


def test_entries_are_read_when_they_are_used() -> None:
    reads: list[str] = []

    def read(name: str) -> dict[str, torch.Tensor]:
        reads.append(name)
        return {"w": torch.full((2,), float(name))}

    tree = LazyTree(["3", "1"], read)
    assert (len(tree), list(tree), reads) == (2, ["3", "1"], [])
    assert [float(value["w"][0]) for value in tree.values()] == [3, 1]
    assert reads == ["3", "1"]
    assert list(flatten({"clients": tree})) == ["clients/3/w", "clients/1/w"]
    assert reads == ["3", "1"] * 2
    with pytest.raises(KeyError):
        tree["2"]
