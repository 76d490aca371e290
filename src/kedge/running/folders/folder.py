"""The folder of a run: created atomically, locked, and written with atomic replacement of files."""

import errno
import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from filelock import lock_descriptor

from kedge.core.errors import CheckpointError, DataError, RequestError
from kedge.running.folders.marker import FILE, PLAN, SWEEP, Marker
from kedge.running.folders.replacing import check_replaceable, runs_in

LOCKS = ("config.toml", PLAN, SWEEP, FILE)  # version 0.1 locks config.toml; an editor may replace that file
BLOCK = 1 << 20  # bytes read at once


def write(path: Path, content: bytes) -> None:
    """Write a file atomically: after a crash it has either the old or the new content."""
    temporary = path.with_name(f".{path.name}.tmp")
    try:
        with temporary.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except OSError:
        temporary.unlink(missing_ok=True)
        raise
    sync_folder(path.parent)


def sync_folder(folder: Path) -> None:
    """Sync a folder, so that renames in it survive a crash."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def create(
    folder: Path,
    contents: Mapping[str, str | bytes],
    marker: Marker,
    replace: bool = False,
    locks: ExitStack | None = None,
) -> None:
    """Create a folder with the files `contents` and a kedge.json, atomically.

    If `replace`, an existing folder that kedge wrote is replaced. The new folder is locked from the moment it
    appears until `locks` is closed, or until this function returns if `locks` is None.
    """
    check_free(folder, replace)
    folder.parent.mkdir(parents=True, exist_ok=True)
    temporary = Path(tempfile.mkdtemp(prefix=f".{folder.name}.", dir=folder.parent))
    aside = None
    with ExitStack() as old_locks, ExitStack() as new_locks:
        try:
            for name, content in {**contents, FILE: marker.content()}.items():
                (temporary / name).parent.mkdir(parents=True, exist_ok=True)
                write(temporary / name, content.encode() if isinstance(content, str) else content)
            temporary.chmod(0o755)
            lock(temporary, new_locks)
            aside = move_aside(folder, old_locks) if replace and os.path.lexists(folder) else None
            move_in(temporary, folder)
        except BaseException:
            if aside and not os.path.lexists(folder):
                os.rename(aside, folder)
            shutil.rmtree(temporary, ignore_errors=True)
            raise
        if locks is not None:
            locks.enter_context(new_locks.pop_all())
    sync_folder(folder.parent)
    if aside:
        shutil.rmtree(aside)


def check_free(folder: Path, replace: bool) -> None:
    """Raise if `folder` exists, or with `replace` if kedge did not write it or a process is running in it."""
    if not os.path.lexists(folder):
        return
    if not replace:
        raise RequestError(exists_message(folder))
    check_replaceable(folder)
    with ExitStack() as locks:
        lock_all(folder, locks)


def exists_message(folder: Path) -> str:
    """The error message if `folder` exists."""
    return (
        f"{folder} exists already. Continue it with --resume {folder}, "
        "write elsewhere with --out DIR, or replace it with --force."
    )


def move_aside(folder: Path, locks: ExitStack) -> Path:
    """Lock a folder that is to be replaced, and rename it; return its new path."""
    lock_all(folder, locks)
    check_replaceable(folder)  # again: files may have been added since
    aside = Path(tempfile.mkdtemp(prefix=f".{folder.name}.", suffix=".old", dir=folder.parent))
    os.rename(folder, aside)
    return aside


def move_in(temporary: Path, folder: Path) -> None:
    """Rename the folder `temporary` to `folder`; raise if another process has created `folder` meanwhile."""
    try:
        os.rename(temporary, folder)
    except OSError as error:
        if error.errno in (errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR):
            raise RequestError(exists_message(folder)) from None
        raise


@contextmanager
def locked(folder: Path | None) -> Iterator[None]:
    """Lock a folder against other processes while this context lasts."""
    with ExitStack() as locks:
        if folder is not None:
            lock(folder, locks)
        yield


def lock(folder: Path, locks: ExitStack) -> None:
    """Lock a folder until `locks` is closed or this process ends; raise if another process has locked it.

    It locks every file that some version of kedge locks. It has no effect on Windows, where a locked file
    cannot be read, and its folder cannot be renamed.
    """
    if os.name == "nt":
        return
    for path in (folder / name for name in LOCKS):
        if not path.is_file():
            continue
        file = locks.enter_context(path.open("rb"))
        if not lock_descriptor(file.fileno(), blocking=False):
            raise RequestError(f"another process is running in {folder}: wait for it, or stop it.")
        if not path.is_file() or not os.path.samestat(os.fstat(file.fileno()), path.stat()):
            raise RequestError(
                f"another process has just replaced {folder}: wait for it, or write elsewhere with --out DIR."
            )


def lock_all(folder: Path, locks: ExitStack) -> None:
    """Lock a folder and the folders of all runs in it."""
    lock(folder, locks)
    for run in runs_in(folder):
        lock(run, locks)


class Lines:
    """A file of JSON lines that only grows, and can be truncated to an earlier length."""

    def __init__(self, path: Path, length: int = 0) -> None:
        self.path = path
        self.hash = hash_of(path, length) if length else hashlib.sha256()
        self.file = path.open("ab")
        os.truncate(path, length)
        self.file.seek(0, os.SEEK_END)

    def append(self, line: Mapping[str, Any]) -> None:
        """Write a line, and flush it to the operating system."""
        content = json.dumps(line, allow_nan=False).encode() + b"\n"
        self.file.write(content)
        self.file.flush()
        self.hash.update(content)

    def length(self) -> int:
        """Sync the file, and return its length; raise if the file was removed or replaced."""
        os.fsync(self.file.fileno())
        if not self.path.is_file() or not os.path.samestat(os.fstat(self.file.fileno()), self.path.stat()):
            raise CheckpointError(
                f"{self.path} was removed or replaced during this run, so kedge writes nothing more there: "
                "the folder may belong to another run now. Start this run again in another folder."
            )
        return self.file.tell()

    def checksum(self) -> str:
        """The sha256 of the bytes written so far, without reading them again."""
        return self.hash.hexdigest()

    def close(self) -> None:
        """Close the file."""
        self.file.close()


def hash_of(path: Path, length: int) -> "hashlib._Hash":
    """The sha256 object after the first `length` bytes of a file; raise if the file is shorter."""
    sha256, left = hashlib.sha256(), length
    with path.open("rb") as file:
        while left and (content := file.read(min(left, BLOCK))):
            sha256.update(content)
            left -= len(content)
    if left:
        raise CheckpointError(
            f"{path} has {length - left} bytes; it had {length} when the checkpoint was saved."
        )
    return sha256


def read_lines(path: Path, length: int | None = None) -> list[dict[str, Any]]:
    """The lines of a history, or of its first `length` bytes; an incomplete last line is left out."""
    if not path.exists():
        return []
    complete_lines = path.read_bytes()[:length].rpartition(b"\n")[0]
    if not complete_lines:
        return []
    return [line_of(path, number, line) for number, line in enumerate(complete_lines.split(b"\n"), 1)]


def line_of(path: Path, number: int, content: bytes) -> dict[str, Any]:
    """A parsed line of a history; raise with its file and line number if it is not a JSON object."""
    try:
        line = json.loads(content)
        if isinstance(line, dict):
            return line
        reason = f"it is a {type(line).__name__}"
    except ValueError as error:
        reason = str(error)
    raise DataError(f"{path} is damaged: line {number} is not a JSON object ({reason}).")
