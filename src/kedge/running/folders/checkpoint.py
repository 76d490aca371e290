"""Checkpoints: the two newest complete states of a run; their checksums are compared before they are used.

checkpoint/000120/ contains tensors as safetensors, the rest as JSON, and a manifest with the checksum of
each file and the lengths of the histories at that round. It is written to a temporary folder, synced,
renamed.
"""

import hashlib
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors import SafetensorError

from kedge.core.errors import CheckpointError
from kedge.core.tree import Leaves, Tree, flatten, unflatten
from kedge.running.folders.folder import sync_folder, write
from kedge.running.folders.tensor_file import read_tensors, write_tensors

KEEP = 2
CLIENTS = "clients"  # the group of the clients' memories, which is read and written one by one


class State(NamedTuple):
    """Everything a run needs to resume as if it had never stopped."""

    # round, stage, stage_round, lengths and checksums of the histories, `auto`'s choice, the run's identity
    facts: dict[str, Any]
    tensors: Tree  # server, and the clients' memories (as a LazyTree they are never all in memory)


def save(folder: Path, number: int, state: State) -> None:
    """Write a version, and then delete the oldest versions beyond KEEP."""
    folder.mkdir(exist_ok=True)
    final, temporary = folder / f"{number:06d}", folder / f".{number:06d}.tmp"
    for leftover in folder.glob(".*.tmp"):
        shutil.rmtree(leftover)
    try:
        temporary.mkdir()
        write(temporary / "state.json", json.dumps(state.facts, indent=1).encode())
        write_tensors(temporary / "tensors.safetensors", state.tensors)
        manifest = {path.name: checksum(path) for path in sorted(temporary.iterdir())}
        write(
            temporary / "manifest.json", json.dumps({"round": number, "sha256": manifest}, indent=1).encode()
        )
        if final.exists():
            shutil.rmtree(final)
        os.rename(temporary, final)
    except OSError:
        shutil.rmtree(temporary, ignore_errors=True)
        raise
    sync_folder(folder)
    for old in [version for version in versions(folder) if version.name <= final.name][KEEP:]:
        shutil.rmtree(old)  # later versions were copied here by hand, or skipped at the start


def checksum(path: Path) -> str:
    """The sha256 of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def cpu_copies(tree: Tree) -> Leaves:
    """Contiguous copies on the CPU, flat, as the file format requires."""
    return {k: v.detach().to("cpu", copy=True).contiguous() for k, v in flatten(tree).items()}


def versions(folder: Path) -> list[Path]:
    """The existing versions, newest first."""
    return sorted((p for p in folder.glob("[0-9]*") if p.is_dir()), reverse=True) if folder.exists() else []


def load(
    folder: Path,
    say: Callable[[str], None],
    objection: Callable[[State], str | None] = lambda state: None,
) -> State | None:
    """Load the newest version that is complete and fits its run; None if nothing was ever saved.

    `say` reports skipped versions. `objection` returns the reason why a complete version does not
    fit, or None.
    """
    existing = versions(folder)
    damaged = 0
    for version in existing:
        try:
            state = read_version(version)
        except CheckpointError as error:
            say(f"{error} It is skipped.")
            damaged += 1
            continue
        reason = objection(state)
        if reason is None:
            if version != existing[0]:
                say(
                    f"The run resumes from checkpoint {version}, and repeats the rounds after round "
                    f"{state.facts['round']} exactly."
                )
            return state
        say(f"checkpoint {version} does not fit: {reason}. It is skipped.")
    if existing and damaged == len(existing):
        raise CheckpointError(
            f"no whole checkpoint is left in {folder}: every version is damaged. "
            "Delete that folder to run again from the start; the history so far is then written anew."
        )
    if existing:
        raise CheckpointError(
            f"no checkpoint in {folder} fits this run, for the reasons above. Restore the missing or damaged "
            "files from a copy. If you have none, delete that folder to run again from the start; the "
            "history so far is then written anew."
        )
    return None


def read_version(version: Path) -> State:
    """Read a version, and compare its checksums; the clients' memories are read when they are used."""
    try:
        manifest = json.loads((version / "manifest.json").read_bytes())["sha256"]
        found = {name: checksum(version / name) for name in manifest}
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise CheckpointError(f"checkpoint {version} is damaged or incomplete ({error}).") from error
    for name, sha256 in found.items():
        if sha256 != manifest[name]:
            raise CheckpointError(f"checkpoint {version} is damaged: {name} does not match its checksum.")
    try:
        facts = json.loads((version / "state.json").read_bytes())
        return State(facts, read_tensors(version / "tensors.safetensors", lazily=CLIENTS))
    except (OSError, SafetensorError, KeyError, ValueError) as error:
        raise CheckpointError(f"checkpoint {version} cannot be read ({error}).") from error


def newest_facts(folder: Path) -> dict[str, Any] | None:
    """The facts of the newest version with a readable state.json; None if no version has one."""
    for version in versions(folder):
        try:
            facts: dict[str, Any] = json.loads((version / "state.json").read_bytes())
        except (OSError, ValueError):
            continue
        return facts
    return None


def on_device(tree: Tree, device: torch.device) -> dict[str, Any]:
    """The tree with its tensors on a device."""
    return unflatten({k: v.to(device) for k, v in flatten(tree).items()})
