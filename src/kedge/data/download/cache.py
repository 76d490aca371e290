"""The cache folder: where downloaded archives and decoded arrays are stored.

It is $KEDGE_CACHE, else $XDG_CACHE_HOME/kedge, else ~/.cache/kedge. Every dataset has a folder in it.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from filelock import FileLock, Timeout

from kedge.core.errors import DataError
from kedge.data.download.progress import say


def cache_folder() -> Path:
    """The folder for downloaded archives and decoded arrays."""
    if given := os.environ.get("KEDGE_CACHE"):
        return Path(given).expanduser()
    base = os.environ.get("XDG_CACHE_HOME", "")
    return (Path(base) if os.path.isabs(base) else Path.home() / ".cache") / "kedge"


@contextmanager
def writable_folder(folder: Path) -> Iterator[None]:
    """Create `folder` if needed; an OSError in the block becomes a DataError that names the remedy."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        yield
    except OSError as error:
        raise DataError(
            f"{folder} cannot be written ({error}). Free disk space or make the folder writable, or name "
            "another cache folder by the environment variable KEDGE_CACHE."
        ) from error


@contextmanager
def locked(file: Path) -> Iterator[None]:
    """Lock `file` against other processes in this context; a second process prints a message and waits."""
    lock = FileLock(file)
    try:
        lock.acquire(timeout=0)
    except Timeout:
        say(f"another process is working in {file.parent}; waiting for it")
        lock.acquire()
    try:
        yield
    finally:
        lock.release()
