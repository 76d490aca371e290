"""Store the user's own code in the folder of a run that uses it.

`sources.json` lists, with checksums, the files of every name of the form file.py:name or package.module:name
in the config; `sources/` contains copies. A run that uses no code of the user's has neither.
"""

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any, Literal, NamedTuple

from kedge.config.experiment import Experiment
from kedge.core.errors import CheckpointError
from kedge.running.folders.dependencies import Code, code_of, root_of
from kedge.running.folders.folder import write

FILE = "sources.json"
FOLDER = "sources"
# A resumed run executes the unchanged files; the files, changed or not; or the stored copies.
CodeChoice = Literal["same", "changed", "stored"]


@dataclass(frozen=True)
class StoredFile:
    """A file of the user's code, and its copy in the run's folder."""

    path: str  # its path when the run started
    stored: str  # the path of the copy, relative to the run's folder
    sha256: str
    module: str | None  # the name it is imported by; None for a file that is named by its path
    names: tuple[str, ...]  # the names in the config whose code needs this file


@dataclass(frozen=True)
class Record:
    """The content of sources.json."""

    names: Mapping[str, str]  # name in the config -> the copy of the file it names
    files: tuple[StoredFile, ...]
    earlier: tuple[dict[str, Any], ...] = ()  # code before an accepted change, and its rounds

    def json(self) -> bytes:
        """The bytes of the file."""
        return json.dumps(asdict(self), indent=1).encode()


class Active(NamedTuple):
    """The record whose code the current context executes."""

    folder: Path
    choice: CodeChoice
    record: Record


ACTIVE: ContextVar[Active | None] = ContextVar("active", default=None)


def code_names(experiment: Experiment) -> list[str]:
    """The names of the user's own code in an experiment's config."""
    tables = {k: v for k, v in asdict(experiment).items() if k != "data"}  # data names files, never code
    return [*dict.fromkeys(colon_names(tables))]


def colon_names(value: Any) -> Iterator[str]:
    """All names with a colon in nested tables."""
    if isinstance(value, Mapping):
        name = value.get("name")
        if isinstance(name, str) and ":" in name:
            yield name
        for inner in value.values():
            yield from colon_names(inner)
    elif isinstance(value, list | tuple):
        for inner in value:
            yield from colon_names(inner)


def contents(names: Sequence[str]) -> dict[str, bytes]:
    """The content of sources.json and the copies for a new run's folder; empty without user code."""
    active = ACTIVE.get()
    if active and active.choice == "stored":
        record = part_for(active.record, names)
        copies = {file.stored: (active.folder / file.stored).read_bytes() for file in record.files}
    else:
        record, copies = collect_code(names, FOLDER)
    return {FILE: record.json(), **copies} if record.files else {}


def part_for(record: Record, names: Sequence[str]) -> Record:
    """The part of a record that `names` need."""
    known = {name: record.names[name] for name in names if name in record.names}
    users = [(file, tuple(name for name in file.names if name in known)) for file in record.files]
    return Record(known, tuple(replace(file, names=in_use) for file, in_use in users if in_use))


def collect_code(names: Sequence[str], folder: str) -> tuple[Record, dict[str, bytes]]:
    """A record of the files that `names` need, and their sources by the path of the copy in `folder`."""
    firsts: dict[str, str] = {}
    found: dict[tuple[Path, str | None], StoredFile] = {}
    copies: dict[str, bytes] = {}
    for name in dict.fromkeys(names):
        for number, code in enumerate(code_of(name)):
            known = found.get(code[:2])
            place = known.stored if known else free_place(folder, code, copies)
            users = (*(known.names if known else ()), name)
            checksum = hashlib.sha256(code.source).hexdigest()
            found[code[:2]] = StoredFile(str(code.path), place, checksum, code.module, users)
            copies[place] = code.source
            if number == 0:
                firsts[name] = place
    return Record(firsts, tuple(found.values())), copies


def free_place(folder: str, code: Code, taken: Mapping[str, bytes]) -> str:
    """A path for the copy of a file that no other copy has, and from which it can be imported by its name."""
    inside = code.path.relative_to(root_of(code.path, code.module)).as_posix()
    place, number = f"{folder}/{inside}", 2
    while taken.get(place, code.source) != code.source:
        place, number = f"{folder}/{number}/{inside}", number + 1
    return place


def read_record(folder: Path) -> Record | None:
    """The record in sources.json; None if the folder has no such file."""
    file = folder / FILE
    if not file.is_file():
        return None
    try:
        found = json.loads(file.read_bytes())
        known = [field.name for field in fields(StoredFile)]
        rows = ({**row, "names": tuple(row["names"])} for row in found["files"])
        files = tuple(StoredFile(**{key: row[key] for key in known}) for row in rows)
        return Record(dict(found["names"]), files, tuple(found["earlier"]))
    except (ValueError, KeyError, TypeError) as error:
        raise CheckpointError(
            f"{file} is damaged ({error!r}). Delete it to resume without comparing your own code."
        ) from error


def file_of(record: Record, stored: str) -> StoredFile:
    """The file whose copy is `stored`."""
    return next(file for file in record.files if file.stored == stored)


def store(folder: Path, record: Record, copies: Mapping[str, bytes]) -> None:
    """Write the copies, then the record that lists them."""
    for place, source in copies.items():
        (folder / place).parent.mkdir(parents=True, exist_ok=True)
        write(folder / place, source)
    write(folder / FILE, record.json())
