"""The clients that have joined a federation: as a file of the run, and as clients of the server's task."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import overload

import numpy as np

from kedge.data.federation import Federation, Ints
from kedge.engines.flower.roster import Joined, Roster
from kedge.running.folders.folder import write

FILE = "clients.json"


def roster_of(folder: Path) -> Roster:
    """The roster of the run in `folder`; it writes the file of the run when a client joins."""
    file = folder / FILE
    return Roster(read_joined(file) if file.is_file() else None, partial(write_joined, file))


def read_joined(file: Path) -> dict[int, Joined]:
    """The clients that have joined, from a run's file."""
    return {
        row["client"]: Joined(row["samples"], row["first_round"]) for row in json.loads(file.read_bytes())
    }


def write_joined(file: Path, joined: Mapping[int, Joined]) -> None:
    """Write the clients that have joined to a run's file, atomically."""
    rows = [{"client": client, **found._asdict()} for client, found in sorted(joined.items())]
    write(file, json.dumps(rows).encode())


class JoinedSamples(Sequence[Ints]):
    """For each client of the experiment an array as long as its data; empty until the client has joined."""

    def __init__(self, clients: int, joined: Mapping[int, Joined]) -> None:
        """`joined` may grow."""
        self.clients, self.joined = clients, joined

    def __len__(self) -> int:
        return self.clients

    @overload
    def __getitem__(self, client: int) -> Ints: ...
    @overload
    def __getitem__(self, client: slice) -> Sequence[Ints]: ...
    def __getitem__(self, client: int | slice) -> Ints | Sequence[Ints]:
        if isinstance(client, slice):
            return [self[number] for number in range(self.clients)[client]]
        number = range(self.clients)[client]
        found = self.joined.get(number)
        return np.zeros(found.samples if found else 0, dtype=np.int64)


def sizes_only(data: Federation, roster: Roster) -> Federation:
    """A federation as the server has it: its test set, and the joined clients' numbers of samples."""
    clients = len(data.clients)
    empty = np.empty(0, dtype=np.int64)
    return replace(data, clients=JoinedSamples(clients, roster.joined), local_tests=(empty,) * clients)
