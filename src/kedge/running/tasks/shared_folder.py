"""The runs of a cluster write their folders themselves: every machine must see the folder of the driver."""

import os
import secrets
import socket
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from kedge.core.errors import RequestError
from kedge.running.folders.replacing import ON_CLUSTER


class SharedFolder(NamedTuple):
    """A folder of the driver with a file that tasks look for, and the driver's working folder."""

    folder: Path
    token: str
    working: Path
    machine: str
    data: str | None  # $KEDGE_DATA of the driver

    def enter(self) -> None:
        """Take over the driver's working folder and $KEDGE_DATA; raise if its files cannot be seen here."""
        try:
            os.chdir(self.working)
            found = (self.folder / ON_CLUSTER).read_text()
        except OSError as error:
            self.refuse(f"{error.strerror}: {error.filename}")
        if found != self.token:
            self.refuse(f"{self.folder / ON_CLUSTER} is another file on it")
        if self.data is not None:
            os.environ["KEDGE_DATA"] = self.data

    def refuse(self, reason: str) -> None:
        """Raise the error of a machine without the driver's files."""
        raise RequestError(
            f"the machine {socket.gethostname()} of the cluster does not see the folder {self.folder} of "
            f"{self.machine}, where kedge was started ({reason}). Tasks write the folders of their runs. Use "
            "a folder (--out DIR) and a working folder on a file system that all machines share, under the "
            "same path; or train on one machine, without --address."
        )


@contextmanager
def shared_folder(folders: Sequence[Path]) -> Iterator[SharedFolder]:
    """In this context, a file in a parent folder of all these folders shows that a machine sees them."""
    above = Path(os.path.commonpath([folder.resolve().parent for folder in folders]))
    while not above.is_dir():
        above = above.parent
    token, data = secrets.token_hex(16), os.environ.get("KEDGE_DATA")
    shared = SharedFolder(above, token, Path.cwd(), socket.gethostname(), data)
    file = above / ON_CLUSTER
    file.write_text(shared.token)
    try:
        yield shared
    finally:
        file.unlink(missing_ok=True)
