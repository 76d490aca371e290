"""The files inside an archive or a folder, read by name.

Nothing is unpacked, so a path in an archive cannot write outside of a folder.
"""

import lzma
import os
import shutil
import tarfile
import tempfile
import zipfile
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from kedge.core.errors import DataError

Stamp = tuple[int, int]  # size, and checksum or modification time: it changes with the content
CHUNK = 2**20  # bytes
DAMAGE = (
    OSError, EOFError, zipfile.BadZipFile, tarfile.TarError, zlib.error, lzma.LZMAError,
    NotImplementedError, RuntimeError,  # raised by zipfile for unknown compression and passwords
)  # fmt: skip


@dataclass(frozen=True)
class Members:
    """The files of the archive or folder `where`, by their path inside, such as "train/y_train.txt"."""

    where: Path
    stamps: Mapping[str, Stamp]
    content: Callable[[str], bytes]

    def read(self, name: str) -> bytes:
        """The bytes of the file `name`."""
        if name not in self.stamps:
            raise DataError(f"{self.where}: lacks {name}; {self._holds()}.")
        try:
            return self.content(name)
        except DAMAGE as error:
            raise DataError(f"{self.where}: {name} is damaged ({error}); put a whole copy there.") from error

    def find(self, *endings: str) -> str:
        """The path of the only file that ends with the first of `endings` that any file has."""
        for ending in endings:
            found = [name for name in self.stamps if name == ending or name.endswith(f"/{ending}")]
            if len(found) > 1:
                raise DataError(
                    f"{self.where}: holds {ending} more than once ({', '.join(sorted(found)[:3])}); give a "
                    "path that holds one dataset only."
                )
            if found:
                return found[0]
        raise DataError(f"{self.where}: lacks {' or '.join(endings)}; {self._holds()}.")

    def _holds(self) -> str:
        first = sorted(self.stamps)[:5]
        more = f", … ({len(self.stamps):,} files)" if len(self.stamps) > len(first) else ""
        return f"it holds {', '.join(first) or 'nothing'}{more}"


@contextmanager
def open_members(path: Path) -> Iterator[Members]:
    """Open a folder, a tar, a zip, or a zip inside a zip (UCI packs its downloads twice)."""
    with ExitStack() as stack:
        try:
            members = _open(path, stack)
        except DAMAGE as error:
            raise DataError(f"{path}: damaged ({error}); put a whole copy there.") from error
        yield members


def check_listing(archive: zipfile.ZipFile) -> None:
    """Raise if a zip lists fewer files than its end record counts: a damaged byte can hide the last files."""
    assert archive.fp is not None
    archive.fp.seek(archive.start_dir)
    end = archive.fp.read()[-22 - len(archive.comment) :]
    count = int.from_bytes(end[10:12], "little")  # 65535: the number is too large for the field
    if end[:4] == b"PK\x05\x06" and count not in (0xFFFF, len(archive.infolist()) % 0x10000):
        raise zipfile.BadZipFile(f"it lists {len(archive.infolist())} files, but its end record says {count}")


def _open(path: Path, stack: ExitStack) -> Members:
    if path.is_dir():
        return _folder(path)
    if zipfile.is_zipfile(path):
        outer = stack.enter_context(zipfile.ZipFile(path))
        check_listing(outer)
        inner = [name for name in outer.namelist() if name.endswith(".zip")]
        if len(inner) == 1:
            unpacked = stack.enter_context(tempfile.TemporaryFile())  # noqa: SIM115  # the stack closes it
            with outer.open(inner[0]) as packed:
                shutil.copyfileobj(packed, unpacked)
            inside = stack.enter_context(zipfile.ZipFile(unpacked))
            check_listing(inside)
            return _zip(path, inside)
        return _zip(path, outer)
    if tarfile.is_tarfile(path):
        return _tar(path)
    raise DataError(f"{path}: no zip or tar archive, or a damaged one; put a whole copy there.")


def _folder(path: Path) -> Members:
    files: dict[str, Stamp] = {}
    for folder, _, names in os.walk(path, followlinks=True):
        for name in names:
            file = Path(folder, name)
            inside = file.relative_to(path).as_posix()
            if _is_data(inside) and file.is_file():
                status = file.stat()
                files[inside] = (status.st_size, status.st_mtime_ns)
    return Members(path, files, lambda name: (path / name).read_bytes())


def _zip(path: Path, archive: zipfile.ZipFile) -> Members:
    files = {i.filename: (i.file_size, i.CRC) for i in archive.infolist() if not i.is_dir()}
    return Members(path, {name: stamp for name, stamp in files.items() if _is_data(name)}, archive.read)


def _tar(path: Path) -> Members:
    """The files of a tar, all read into memory: a compressed tar can only be read from front to back."""
    files: dict[str, bytes] = {}
    with tarfile.open(path) as archive:
        for member in archive:
            content = archive.extractfile(member) if member.isreg() else None
            if content is not None and _is_data(member.name):
                files[member.name] = content.read()
        while archive.fileobj and archive.fileobj.read(CHUNK):  # the checksum is compared at the end
            pass
    stamps = {name: (len(content), zlib.crc32(content)) for name, content in files.items()}
    return Members(path, stamps, files.__getitem__)


def _is_data(name: str) -> bool:
    """Whether a file belongs to the dataset: hidden files and the additions of macOS do not."""
    return not name.startswith("__MACOSX/") and not name.rpartition("/")[2].startswith(".")
