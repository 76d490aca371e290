"""LazyTree: a tree whose entries are read each time they are used, so that one of them is in memory."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any


class LazyTree(Mapping[str, Any]):
    """A tree that reads an entry when it is used, and keeps none.

    The clients' memories of a large run are such a tree: a checkpoint writes one after another.
    """

    def __init__(self, names: Iterable[str], read: Callable[[str], Any]) -> None:
        """`read` returns the entry of a name."""
        self.names = dict.fromkeys(names)
        self.read = read

    def __getitem__(self, name: str) -> Any:
        if name not in self.names:
            raise KeyError(name)
        return self.read(name)

    def __iter__(self) -> Iterator[str]:
        return iter(self.names)

    def __len__(self) -> int:
        return len(self.names)
