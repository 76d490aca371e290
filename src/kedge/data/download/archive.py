"""Official archives: fetched once into the cache folder, checked, and never left there half.

An archive at a path that a user gives is checked as well, unless verify = false.

The cache folder is $KEDGE_CACHE, else $XDG_CACHE_HOME/kedge, else ~/.cache/kedge; every dataset has a folder
in it. A download grows as `<file>.part`, is checked, and then renamed. Nothing is ever unpacked.
"""

import hashlib
import os
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path

from kedge.core.errors import DataError
from kedge.data.download.download import Refused, download
from kedge.data.download.progress import say

try:
    import fcntl
except ImportError:  # not on Windows
    fcntl = None  # type: ignore[assignment]  # its absence is asked for below

Given = str | os.PathLike[str] | None  # the option path of every loader


@dataclass(frozen=True)
class Archive:
    """A published file: its name, addresses that give the same bytes, and how a whole copy is known.

    Checksums read "md5:…" or "sha256:…", and a copy needs one of them. Where none is published, the sha256 of
    the first copy is kept beside it and compared on later use.
    """

    file: str
    addresses: tuple[str, ...]
    checksums: tuple[str, ...] = ()
    size: int | None = None  # bytes

    def also(self, addresses: tuple[str, ...], checksum: str) -> "Archive":
        """The archive with addresses to try first, and a further checksum that will do."""
        every = tuple(dict.fromkeys((*addresses, *self.addresses)))
        return replace(self, addresses=every, checksums=tuple(dict.fromkeys((*self.checksums, checksum))))

    def size_or_name(self, file: Path) -> bool:
        """Whether a file has the archive's name or exactly its size."""
        return file.name == self.file or file.stat().st_size == self.size

    def problem(self, copy: Path) -> str | None:
        """Why these bytes are not the archive; None when they are."""
        size = copy.stat().st_size
        found = {wanted: digest(copy, wanted.partition(":")[0]) for wanted in self.checksums}
        unlike = [f"its checksum is {having}, not {wanted}" for wanted, having in found.items()]
        if self.size is not None and size != self.size:
            return "; ".join([f"it has {size:,} bytes, not {self.size:,}", *unlike])
        if found and not any(wanted == having for wanted, having in found.items()):
            return "; ".join(unlike)
        if not found and self.file.endswith(".zip") and not zipfile.is_zipfile(copy):
            return "it is no whole zip archive"
        return None


def as_it_is(archive: Archive) -> Archive:
    """No further addresses and checksums are known."""
    return archive


Ask = Callable[[Archive], Archive]


def digest(file: Path, kind: str) -> str:
    """A file's checksum as "md5:…" or "sha256:…"."""
    with file.open("rb") as stream:
        return f"{kind}:{hashlib.file_digest(stream, kind).hexdigest()}"


def cache_folder() -> Path:
    """Where fetched archives and decoded arrays are kept."""
    if given := os.environ.get("KEDGE_CACHE"):
        return Path(given).expanduser()
    base = os.environ.get("XDG_CACHE_HOME", "")
    return (Path(base) if os.path.isabs(base) else Path.home() / ".cache") / "kedge"


def located(dataset: str, archive: Archive, path: Given, ask: Ask = as_it_is, verify: bool = True) -> Path:
    """Where the data are: the path given, the archive in that folder, or the archive in the cache folder.

    A given archive is checked unless `verify` is false; a folder of unpacked files is not.
    """
    if path is None:
        return fetch(dataset, archive, ask)
    given = existing(dataset, path, archive.file)
    file = given / archive.file if (given / archive.file).is_file() else given
    try:
        if file.is_file():
            _check_given(dataset, file, archive, ask, verify)
    except OSError as error:
        raise DataError(f"{file} cannot be read ({error}).") from error
    return file


def published(file: Path, archive: Archive) -> bool:
    """Whether to compare a file with this archive: it has its name or size, and a checksum is known."""
    return bool(archive.checksums) and file.is_file() and archive.size_or_name(file)


def check_content(where: Path, name: str, content: bytes, wanted: str) -> None:
    """Raise if a file inside an archive or folder differs from the checksum `wanted`, such as "md5:…"."""
    kind = wanted.partition(":")[0]
    found = f"{kind}:{hashlib.new(kind, content).hexdigest()}"
    if found != wanted:
        raise DataError(refusal(f"{where}: the checksum of {name} is {found}, not {wanted}"))


def refusal(problem: str, address: str = "") -> str:
    """An error message: the problem with a file that a user gave, and what to do."""
    again = f" from {address}" if address else ""
    return (
        f"{problem}. It is damaged, or not the published file: download it again{again}, or switch this "
        "check off with data.verify = false (--set data.verify=false)."
    )


def _check_given(dataset: str, file: Path, archive: Archive, ask: Ask, verify: bool) -> None:
    """Compare a file with its published checksum; if none is published, with its checksum at first use."""
    if not archive.checksums:
        mark = hashlib.sha256(bytes(file.resolve())).hexdigest()[:16]
        beside = cache_folder() / dataset / f"given-{mark}.sha256"
        if not verify:
            beside.unlink(missing_ok=True)
        elif problem := _changed(file, beside):
            raise DataError(
                f"{file}: {problem}. Restore the first copy; or, if you changed it on purpose, accept it by "
                "running once with data.verify = false (--set data.verify=false)."
            )
        return
    wrong = verify and published(file, archive) and archive.problem(file)
    if wrong and (problem := ask(archive).problem(file)):
        raise DataError(refusal(f"{file}: {problem}", archive.addresses[0]))


def existing(dataset: str, path: str | os.PathLike[str], files: str) -> Path:
    """The path a user gives."""
    given = Path(path).expanduser()
    if not given.exists():
        raise DataError(f"{dataset}: {given} does not exist; give the path of {files}, packed or unpacked.")
    return given


def fetch(dataset: str, archive: Archive, ask: Ask = as_it_is) -> Path:
    """The archive in the cache folder, downloaded if it is not there yet, and checked.

    `ask` is asked for further addresses and checksums when there is need of them.
    """
    folder = cache_folder() / dataset
    file, part = folder / archive.file, folder / f"{archive.file}.part"
    if not file.is_file():
        with writable(folder), locked(folder / f".{archive.file}.lock"):
            if not file.is_file():  # another process may have brought it meanwhile
                asked = ask(archive)
                try:
                    download(asked.file, asked.addresses, asked.size, asked.problem, part)
                except Refused as error:
                    raise DataError(_missing(dataset, file, str(error))) from error
                if not archive.checksums:
                    _record(part, _beside(file))
                os.replace(part, file)
    try:
        changed = None if archive.checksums else _changed(file, _beside(file))
        problem = changed or (archive.problem(file) and ask(archive).problem(file))
    except OSError as error:
        raise DataError(f"{file} cannot be read ({error}).") from error
    if problem:
        raise DataError(
            f"{file}: {problem}. It is damaged, or another file: delete it to have it fetched again, or put "
            "a whole copy there."
        )
    return file


@contextmanager
def writable(folder: Path) -> Iterator[None]:
    """A folder of the cache, made if need be; what cannot be written there is said with the way out."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        yield
    except OSError as error:
        raise DataError(
            f"{folder} cannot be written ({error}). Make room or give yourself the right to write there, or "
            "name another cache folder by the environment variable KEDGE_CACHE."
        ) from error


@contextmanager
def locked(file: Path) -> Iterator[None]:
    """Hold a lock against other processes; who comes second waits. Nothing happens without such locks."""
    with file.open("ab") as lock:
        if fcntl is not None:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                say(f"another process is at work in {file.parent}; waiting for it")
                fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _beside(file: Path) -> Path:
    return file.with_name(f"{file.name}.sha256")


def _record(copy: Path, beside: Path) -> None:
    temporary = beside.with_name(f"{beside.name}.tmp")
    temporary.write_text(f"{digest(copy, 'sha256')}\n")
    os.replace(temporary, beside)


def _changed(file: Path, beside: Path) -> str | None:
    """How a file without a published checksum has changed since its download or first use; None if not."""
    if not beside.is_file():  # put there by hand: this is the first use
        with suppress(OSError):  # a folder that can only be read is good enough
            beside.parent.mkdir(parents=True, exist_ok=True)
            _record(file, beside)
        return None
    first, now = beside.read_text().strip(), digest(file, "sha256")
    return None if now == first else f"its checksum is {now}, but it was {first} when it came"


def _missing(dataset: str, file: Path, reasons: str) -> str:
    return (
        f"{dataset}: {file.name} is not in {file.parent} and could not be fetched ({reasons}). Without a "
        f"network put {file.name} into {file.parent}, or give the archive or its unpacked folder by the "
        f"option path (data.path), or put {dataset}.npz into the folder $KEDGE_DATA."
    )
