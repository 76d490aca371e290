"""Published archives: downloaded once into the cache folder, and checked at every use.

An archive at a path that a user gives is checked as well, unless `verify` is false. A download grows as
`<file>.part`, is checked, and is then renamed. Nothing is ever unpacked.
"""

import hashlib
import os
import zipfile
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from kedge.core.errors import DataError
from kedge.data.download.cache import cache_folder, locked, writable_folder
from kedge.data.download.download import DownloadFailed, download

PathOption = str | os.PathLike[str] | None  # the option `path` of every loader


@dataclass(frozen=True)
class Archive:
    """A published file: its name, its addresses, and the checksum and size that a whole copy has.

    All addresses give the same bytes. A checksum reads "md5:…" or "sha256:…". Without a published checksum,
    the sha256 of the first copy is stored beside it and compared on later use.
    """

    file: str
    addresses: tuple[str, ...]
    checksum: str | None = None
    size: int | None = None  # bytes

    def matches_name_or_size(self, file: Path) -> bool:
        """Whether a file has the archive's name or exactly its size."""
        return file.name == self.file or file.stat().st_size == self.size

    def problem(self, copy: Path) -> str | None:
        """The reason why the file `copy` is not the published archive, or None."""
        size = copy.stat().st_size
        checksum = self.checksum and digest(copy, self.checksum.partition(":")[0])
        mismatch = [] if checksum == self.checksum else [f"its checksum is {checksum}, not {self.checksum}"]
        if self.size is not None and size != self.size:
            return "; ".join([f"it has {size:,} bytes, not {self.size:,}", *mismatch])
        if mismatch:
            return mismatch[0]
        if not self.checksum and self.file.endswith(".zip") and not zipfile.is_zipfile(copy):
            return "it is no whole zip archive"
        return None


def digest(file: Path, kind: str) -> str:
    """A file's checksum as "md5:…" or "sha256:…"."""
    with file.open("rb") as stream:
        return f"{kind}:{hashlib.file_digest(stream, kind).hexdigest()}"


def find_archive(dataset: str, archive: Archive, path: PathOption, verify: bool = True) -> Path:
    """The path of the data: `path`, the archive in that folder, or the archive in the cache folder.

    A missing archive is downloaded into the cache folder. A file at `path` is checked unless `verify` is
    false; a folder of unpacked files is not.
    """
    if path is None:
        return fetch(dataset, archive)
    existing = existing_path(dataset, path, archive.file)
    file = existing / archive.file if (existing / archive.file).is_file() else existing
    try:
        if file.is_file():
            _check_given(dataset, file, archive, verify)
    except OSError as error:
        raise DataError(f"{file} cannot be read ({error}).") from error
    return file


def is_published(file: Path, archive: Archive) -> bool:
    """Whether `file` should match the archive's checksum: it has the archive's name or size."""
    return archive.checksum is not None and file.is_file() and archive.matches_name_or_size(file)


def check_content(where: Path, name: str, content: bytes, expected: str) -> None:
    """Raise if a file inside an archive or folder differs from the checksum `expected`, such as "md5:…"."""
    kind = expected.partition(":")[0]
    found = f"{kind}:{hashlib.new(kind, content).hexdigest()}"
    if found != expected:
        raise DataError(mismatch_message(f"{where}: the checksum of {name} is {found}, not {expected}"))


def mismatch_message(problem: str, address: str = "") -> str:
    """An error message: the problem with a file that a user gave, and the remedies."""
    again = f" from {address}" if address else ""
    return (
        f"{problem}. It is damaged, or not the published file: download it again{again}, or switch this "
        "check off with data.verify = false (--set data.verify=false)."
    )


def _check_given(dataset: str, file: Path, archive: Archive, verify: bool) -> None:
    """Compare a file with its published checksum; if none is published, with its checksum at first use."""
    if not archive.checksum:
        path_hash = hashlib.sha256(bytes(file.resolve())).hexdigest()[:16]
        recorded = cache_folder() / dataset / f"given-{path_hash}.sha256"
        if not verify:
            recorded.unlink(missing_ok=True)
        elif problem := _change_since_first_use(file, recorded):
            raise DataError(
                f"{file}: {problem}. Restore the first copy; or, if you changed it on purpose, accept it by "
                "running once with data.verify = false (--set data.verify=false)."
            )
    elif verify and is_published(file, archive) and (problem := archive.problem(file)):
        raise DataError(mismatch_message(f"{file}: {problem}", archive.addresses[0]))


def existing_path(dataset: str, path: str | os.PathLike[str], files: str) -> Path:
    """The path that a user gives; `files` names its contents in the error if it does not exist."""
    expanded = Path(path).expanduser()
    if not expanded.exists():
        raise DataError(
            f"{dataset}: {expanded} does not exist; give the path of {files}, packed or unpacked."
        )
    return expanded


def fetch(dataset: str, archive: Archive) -> Path:
    """Download the archive into the cache folder if it is missing there, check it, and return its path."""
    folder = cache_folder() / dataset
    file, part = folder / archive.file, folder / f"{archive.file}.part"
    if not file.is_file():
        with writable_folder(folder), locked(folder / f".{archive.file}.lock"):
            if not file.is_file():  # another process may have fetched it while this one waited
                try:
                    download(archive.file, archive.addresses, archive.size, archive.problem, part)
                except DownloadFailed as error:
                    raise DataError(_missing_message(dataset, file, str(error))) from error
                if not archive.checksum:
                    _record_checksum(part, _checksum_file(file))
                os.replace(part, file)
    try:
        changed = None if archive.checksum else _change_since_first_use(file, _checksum_file(file))
        problem = changed or archive.problem(file)
    except OSError as error:
        raise DataError(f"{file} cannot be read ({error}).") from error
    if problem:
        raise DataError(
            f"{file}: {problem}. It is damaged, or another file: delete it, and it is downloaded again; or "
            "put a whole copy there."
        )
    return file


def _checksum_file(file: Path) -> Path:
    return file.with_name(f"{file.name}.sha256")


def _record_checksum(copy: Path, recorded: Path) -> None:
    temporary = recorded.with_name(f"{recorded.name}.tmp")
    temporary.write_text(f"{digest(copy, 'sha256')}\n")
    os.replace(temporary, recorded)


def _change_since_first_use(file: Path, recorded: Path) -> str | None:
    """The difference of a file from the checksum in `recorded`, or None.

    At first use the checksum is recorded.
    """
    if not recorded.is_file():  # the user put the file there
        with suppress(OSError):  # a read-only folder is fine
            recorded.parent.mkdir(parents=True, exist_ok=True)
            _record_checksum(file, recorded)
        return None
    first, now = recorded.read_text().strip(), digest(file, "sha256")
    return None if now == first else f"its checksum is {now}, but it was {first} at first use"


def _missing_message(dataset: str, file: Path, reasons: str) -> str:
    return (
        f"{dataset}: {file.name} is not in {file.parent} and could not be downloaded ({reasons}). Without a "
        f"network put {file.name} into {file.parent}, or give the archive or its unpacked folder by the "
        f"option path (data.path), or put {dataset}.npz into the folder $KEDGE_DATA."
    )
