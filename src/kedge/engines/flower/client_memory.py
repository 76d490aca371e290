"""The memory of one client on its disk: the states before and after its latest round.

A file is named by the number of rounds after which it was written. It is written to a temporary file, synced
and renamed, so a client that is killed at any moment finds the state that the server names.
"""

import os
from pathlib import Path
from typing import NamedTuple

import safetensors
import safetensors.torch
from safetensors import SafetensorError

from kedge.core.errors import RequestError
from kedge.core.tree import Tree, flatten, unflatten


class StoredMemory(NamedTuple):
    """The memory of a client, and the stage in which it was written."""

    tree: Tree
    stage: int


class ClientMemory:
    """The files of one client in one run."""

    def __init__(self, folder: Path, run: str, client: int) -> None:
        """`run` is the digest of the run's identity; a folder belongs to one run and client."""
        self.folder = folder
        self.identity = {"run": run, "client": str(client)}
        folder.mkdir(parents=True, exist_ok=True)

    def path(self, number: int) -> Path:
        """The file of the memory after `number` rounds of the run."""
        return self.folder / f"memory-{number:06d}.safetensors"

    def load(self, number: int) -> StoredMemory | None:
        """The memory after `number` rounds; None if it is not stored or damaged."""
        path = self.path(number)
        if not path.is_file():
            return None
        try:
            with safetensors.safe_open(path, "pt") as file:
                facts = file.metadata() or {}
                tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (no dict)
        except (SafetensorError, OSError):
            return None
        found = {key: facts.get(key) for key in self.identity}
        if found != self.identity:
            raise RequestError(
                f"{path} belongs to client {found['client']} of another run. Name another folder with "
                "--memory DIR."
            )
        return StoredMemory(unflatten(tensors), int(facts["stage"]))

    def save(self, number: int, memory: StoredMemory, before: int) -> None:
        """Write the memory after `number` rounds; keep the one after `before` rounds, delete all others."""
        path, temporary = self.path(number), self.folder / ".memory.tmp"
        tensors = {k: v.detach().cpu().contiguous() for k, v in flatten(memory.tree).items()}
        facts = {**self.identity, "stage": str(memory.stage)}
        safetensors.torch.save_file(tensors, temporary, metadata=facts)
        with temporary.open("rb+") as file:
            os.fsync(file.fileno())
        os.replace(temporary, path)
        handle = os.open(self.folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
        kept = {path, self.path(before)}
        for old in self.folder.glob("memory-*.safetensors"):
            if old not in kept:
                old.unlink()
