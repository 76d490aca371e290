"""The user's own code that a run began with: stored in its folder, and compared when the run goes on.

`sources.json` lists the files behind every name of the form file.py:name or package.module:name in the
configuration, with their checksums; copies lie in `sources/`. A run that names no file of the user's has
neither.
"""

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any, Literal, NamedTuple

from kedge.core.errors import CheckpointError
from kedge.running.config import Experiment
from kedge.running.dependencies import Code, code_of, root_of
from kedge.running.folder import write

FILE = "sources.json"
FOLDER = "sources"
# What a run that goes on executes: the files, which must be as they were; the files as they are; the copies.
CodeChoice = Literal["same", "changed", "stored"]


@dataclass(frozen=True)
class Stored:
    """A file of the user's code, and its copy in the run's folder."""

    path: str  # where it was when the run began
    stored: str  # the copy, below the run's folder
    sha256: str
    module: str | None  # the name it is imported by; None for a file that is named by its path
    names: tuple[str, ...]  # the names in the configuration that need it


@dataclass(frozen=True)
class Record:
    """What sources.json says."""

    names: Mapping[str, str]  # in the configuration -> the copy of the file it names
    files: tuple[Stored, ...]
    earlier: tuple[dict[str, Any], ...] = ()  # what the code was before a change was accepted, and how long

    def json(self) -> bytes:
        """The file's content."""
        return json.dumps(asdict(self), indent=1).encode()


class Active(NamedTuple):
    """The record whose code is executed now."""

    folder: Path
    choice: CodeChoice
    record: Record


ACTIVE: ContextVar[Active | None] = ContextVar("active", default=None)


def own_names(experiment: Experiment) -> list[str]:
    """The names in a configuration that stand for code of the user's own."""
    tables = {k: v for k, v in asdict(experiment).items() if k != "data"}  # data are files, never code
    return [*dict.fromkeys(named(tables))]


def named(value: Any) -> Iterator[str]:
    """All names with a colon, in tables inside tables."""
    if isinstance(value, Mapping):
        name = value.get("name")
        if isinstance(name, str) and ":" in name:
            yield name
        for inner in value.values():
            yield from named(inner)
    elif isinstance(value, list | tuple):
        for inner in value:
            yield from named(inner)


def contents(names: Sequence[str]) -> dict[str, bytes]:
    """The files that a new run's folder holds of the user's code; nothing if no name stands for any."""
    active = ACTIVE.get()
    if active and active.choice == "stored":
        record = only(active.record, names)
        copies = {file.stored: (active.folder / file.stored).read_bytes() for file in record.files}
    else:
        record, copies = collected(names, FOLDER)
    return {FILE: record.json(), **copies} if record.files else {}


def only(record: Record, names: Sequence[str]) -> Record:
    """The part of a record that some names need."""
    known = {name: record.names[name] for name in names if name in record.names}
    users = [(file, tuple(name for name in file.names if name in known)) for file in record.files]
    return Record(known, tuple(replace(file, names=own) for file, own in users if own))


def collected(names: Sequence[str], folder: str) -> tuple[Record, dict[str, bytes]]:
    """The files behind these names as they were loaded, and where their copies go."""
    firsts: dict[str, str] = {}
    found: dict[tuple[Path, str | None], Stored] = {}
    copies: dict[str, bytes] = {}
    for name in dict.fromkeys(names):
        for number, code in enumerate(code_of(name)):
            known = found.get(code[:2])
            place = known.stored if known else free(folder, code, copies)
            users = (*(known.names if known else ()), name)
            checksum = hashlib.sha256(code.source).hexdigest()
            found[code[:2]] = Stored(str(code.path), place, checksum, code.module, users)
            copies[place] = code.source
            if number == 0:
                firsts[name] = place
    return Record(firsts, tuple(found.values())), copies


def free(folder: str, code: Code, taken: Mapping[str, bytes]) -> str:
    """A place for a copy from which it can be imported by its name."""
    inside = code.path.relative_to(root_of(code.path, code.module)).as_posix()
    place, number = f"{folder}/{inside}", 2
    while taken.get(place, code.source) != code.source:
        place, number = f"{folder}/{number}/{inside}", number + 1
    return place


def read_record(folder: Path) -> Record | None:
    """What a folder says of the user's code; None where it says nothing."""
    file = folder / FILE
    if not file.is_file():
        return None
    try:
        found = json.loads(file.read_bytes())
        known = [field.name for field in fields(Stored)]
        rows = ({**row, "names": tuple(row["names"])} for row in found["files"])
        files = tuple(Stored(**{key: row[key] for key in known}) for row in rows)
        return Record(dict(found["names"]), files, tuple(found["earlier"]))
    except (ValueError, KeyError, TypeError) as error:
        raise CheckpointError(
            f"{file} is damaged ({error!r}). Delete it to go on without comparing your own code."
        ) from error


def file_of(record: Record, stored: str) -> Stored:
    """The file with this copy."""
    return next(file for file in record.files if file.stored == stored)


def store(folder: Path, record: Record, copies: Mapping[str, bytes]) -> None:
    """Write copies, then the record that names them."""
    for place, source in copies.items():
        (folder / place).parent.mkdir(parents=True, exist_ok=True)
        write(folder / place, source)
    write(folder / FILE, record.json())
