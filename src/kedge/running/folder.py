"""The folder of a run: made whole or not at all, written to without ever leaving half a file."""

import json
import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from kedge.core.errors import RequestError

try:
    import fcntl
except ImportError:  # not on Windows
    fcntl = None  # type: ignore[assignment]  # its absence is asked for below


def write(path: Path, content: bytes) -> None:
    """Write a file that is either the old one or the new one, whatever happens."""
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
    """Make renames in this folder lasting."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def create(folder: Path, config: str, replace: bool = False) -> None:
    """Make a run's folder with its configuration in it."""
    create_folder(folder, {"config.toml": config}, replace)


def create_folder(folder: Path, contents: Mapping[str, str | bytes], replace: bool = False) -> None:
    """Make a folder with these files in it; all appear at once."""
    if folder.exists() and not replace:
        raise RequestError(
            f"{folder} exists already. Continue it with --resume {folder}, "
            "write elsewhere with --out DIR, or replace it with --force."
        )
    folder.parent.mkdir(parents=True, exist_ok=True)
    temporary = Path(tempfile.mkdtemp(prefix=f".{folder.name}.", dir=folder.parent))
    try:
        for name, content in contents.items():
            (temporary / name).parent.mkdir(parents=True, exist_ok=True)
            write(temporary / name, content.encode() if isinstance(content, str) else content)
        temporary.chmod(0o755)
        if folder.exists():
            shutil.rmtree(folder)
        os.rename(temporary, folder)
    except OSError:
        shutil.rmtree(temporary, ignore_errors=True)
        raise
    sync_folder(folder.parent)


@contextmanager
def locked(folder: Path | None) -> Iterator[None]:
    """Hold a run's folder against other processes; where the system has no such locks nothing happens."""
    if folder is None or fcntl is None:
        yield
        return
    with (folder / "config.toml").open("rb") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise RequestError(f"another process is running in {folder}: wait for it, or stop it.") from None
        yield


class Lines:
    """A file of JSON lines that only grows, and can be cut back to a length it had."""

    def __init__(self, path: Path, length: int = 0) -> None:
        self.path = path
        self.file = path.open("ab")
        os.truncate(path, length)
        self.file.seek(0, os.SEEK_END)

    def append(self, line: Mapping[str, Any]) -> None:
        """Add a line and hand it to the operating system."""
        self.file.write(json.dumps(line, allow_nan=False).encode() + b"\n")
        self.file.flush()

    def length(self) -> int:
        """The bytes written, made lasting."""
        os.fsync(self.file.fileno())
        return self.file.tell()

    def close(self) -> None:
        """Let go of the file."""
        self.file.close()


def read_lines(path: Path) -> list[dict[str, Any]]:
    """The lines of a history; one cut off by a crash is left out."""
    if not path.exists():
        return []
    whole = path.read_bytes().rpartition(b"\n")[0]
    return [json.loads(line) for line in whole.splitlines()]
