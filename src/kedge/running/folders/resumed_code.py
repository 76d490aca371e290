"""Compare the user's own code with the copies in a run's folder when the run resumes.

A file that has changed or is missing is an error unless the user chooses what to execute instead. Copies in
a run's folder are executed only with the choice "stored".
"""

import difflib
import hashlib
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from importlib.util import cache_from_source
from pathlib import Path
from types import ModuleType
from typing import Any

from kedge.config.imports import PINNED, Pin, source_of, split_name
from kedge.core.errors import CheckpointError, RequestError
from kedge.data.download.progress import say
from kedge.running.folders import checkpoint
from kedge.running.folders.dependencies import root_of
from kedge.running.folders.sources import (
    ACTIVE,
    FILE,
    FOLDER,
    Active,
    CodeChoice,
    Record,
    StoredFile,
    collect_code,
    file_of,
    read_record,
    store,
)

SHOWN = 12  # changed lines in a message, at most


@contextmanager
def use_code(folder: Path, choice: CodeChoice = "same") -> Iterator[None]:
    """In this context, the names in a run's config refer to the code that `choice` selects.

    Raises RequestError if the choice is "same" and a file has changed or is missing.
    """
    record = read_record(folder)
    if record is None:
        yield
        return
    if choice == "stored":
        pins = {name: pin_of_copy(folder, record, name) for name in record.names}
        imports = import_from_copies(record, [pin.root for pin in pins.values()])
    else:
        places = {file.stored: current_path(file, record) for file in record.files}
        check_files_exist(folder, record, places, choice)
        if choice == "same":
            check_unchanged(folder, record, places)
        unload_stale_modules(record, set(places.values()))
        pins = {name: pin_of(places[stored], record, stored) for name, stored in record.names.items()}
        imports = unchanged_imports()
    tokens = PINNED.set(pins), ACTIVE.set(Active(folder, choice, record))
    try:
        with imports:
            yield
    finally:
        PINNED.reset(tokens[0])
        ACTIVE.reset(tokens[1])


@contextmanager
def unchanged_imports() -> Iterator[None]:
    """A context without effect: modules are imported as usual."""
    yield


def unload_stale_modules(record: Record, paths: set[Path]) -> None:
    """Unload the modules of a record if this process has loaded an earlier version of one of the files."""
    now = {path: path.read_bytes() for path in paths if path.is_file()}
    loaded = [(m, path) for m in list(sys.modules.values()) if (path := path_of(m, paths))]
    stale = {path for module, path in loaded if source_of(module) != now.get(path)}
    if not stale:
        return
    for path in stale:  # Python would reuse its compiled file if size and second of the change are equal
        Path(cache_from_source(str(path))).unlink(missing_ok=True)
    tops, ids = top_names(record), {id(module) for module, _ in loaded}
    for name in [name for name, m in sys.modules.items() if id(m) in ids or name.partition(".")[0] in tops]:
        del sys.modules[name]


def path_of(module: ModuleType, paths: set[Path]) -> Path | None:
    """The file of a module if it is in `paths`."""
    file = getattr(module, "__file__", None)
    if not isinstance(file, str) or Path(file).name not in {path.name for path in paths}:
        return None  # no file system access: there are thousands of modules
    path = Path(file).resolve()
    return path if path in paths else None


def top_names(record: Record) -> set[str]:
    """The top-level modules and packages of a record."""
    return {file.module.partition(".")[0] for file in record.files if file.module}


@contextmanager
def import_from_copies(record: Record, roots: Sequence[Path]) -> Iterator[None]:
    """In this context, import the modules of a record from the folders `roots`; restore sys.modules after."""
    tops = top_names(record)

    def remove_modules() -> dict[str, Any]:
        names = [name for name in sys.modules if name.partition(".")[0] in tops]
        return {name: sys.modules.pop(name) for name in names}

    path, before, compiled = list(sys.path), remove_modules(), sys.dont_write_bytecode
    sys.path[:0] = [str(root) for root in dict.fromkeys(roots)]
    sys.dont_write_bytecode = True  # write no __pycache__ into the run's folder
    try:
        yield
    finally:
        remove_modules()
        sys.modules.update(before)
        sys.path[:] = path
        sys.dont_write_bytecode = compiled


def pin_of(path: Path, record: Record, stored: str) -> Pin:
    """The `Pin` (config/imports.py) of the file at `path`, whose copy is `stored`."""
    return Pin(path, root_of(path, file_of(record, stored).module), path.read_bytes())


def pin_of_copy(folder: Path, record: Record, name: str) -> Pin:
    """The `Pin` of the stored copy of the file that `name` refers to; raise if any copy is damaged."""
    for file in record.files:
        copy = folder / file.stored
        if not copy.is_file() or hashlib.sha256(copy.read_bytes()).hexdigest() != file.sha256:
            wrong = "differs from its checksum in sources.json" if copy.is_file() else "is missing"
            raise CheckpointError(
                f"{copy} {wrong}, so kedge does not execute it. Restore {file.path} and resume without "
                "--use-stored-code."
            )
    return pin_of((folder / record.names[name]).resolve(), record, record.names[name])


def current_path(file: StoredFile, record: Record) -> Path:
    """The current path of a file: its old path, or its new path if the user's folder was moved."""
    path = Path(file.path)
    if path.is_file():
        return path
    for name in file.names:
        place, first = split_name(name)[0], file_of(record, record.names[name])
        if place.endswith(".py"):
            here, top = Path(place).expanduser().resolve().parent, Path(first.path).parent
        else:
            here, top = Path.cwd(), root_of(Path(first.path), first.module)
        moved = Path(os.path.normpath(here / os.path.relpath(path, top)))
        if moved.is_file():
            return moved
    return path


def check_files_exist(folder: Path, record: Record, places: Mapping[str, Path], choice: CodeChoice) -> None:
    """Raise if a file is missing; with 'changed' only if a config names it: imports may have changed."""
    needed = places if choice == "same" else {stored: places[stored] for stored in record.names.values()}
    missing = [stored for stored, path in needed.items() if not path.is_file()]
    if not missing:
        return
    stored = missing[0]
    name = next((n for n, s in record.names.items() if s == stored), file_of(record, stored).names[0])
    raise RequestError(
        f"{name}: the file {places[stored]} is missing; {folder} started with it. Put it back, or "
        f"resume in the folder that {split_name(name)[0]} is relative to. Or execute the copy "
        f"{folder / stored} that the run stored when it started: --use-stored-code (in Python: "
        "code='stored')."
    )


def check_unchanged(folder: Path, record: Record, places: Mapping[str, Path]) -> None:
    """Raise if a file differs from the copy that the run stored; show the lines that differ."""
    changed = {}
    for file in record.files:
        now = places[file.stored].read_bytes()
        if hashlib.sha256(now).hexdigest() != file.sha256:
            changed[file] = now
    if not changed:
        return
    messages = {
        f"{places[file.stored]} has changed since {folder} started:\n{difference(folder / file.stored, now)}"
        for file, now in changed.items()
    }
    raise RequestError(
        "\n".join(sorted(messages))
        + "\nRestore the original; or resume with the changed code: --accept-changed-code (in Python: "
        f"code='changed'; {FILE} records it); or execute the copy in {folder / FOLDER}: --use-stored-code "
        "(in Python: code='stored')."
    )


def difference(copy: Path, now: bytes) -> str:
    """The first lines of a diff between a copy and the current content of the file."""
    old = copy.read_bytes() if copy.is_file() else b""
    before, after = (text.decode(errors="replace").splitlines() for text in (old, now))
    lines = [*difflib.unified_diff(before, after, lineterm="", n=0)][2:]
    more = [f"  … and {len(lines) - SHOWN} more lines"] if len(lines) > SHOWN else []
    return "\n".join([*(f"  {line}" for line in lines[:SHOWN]), *more]) or "  (only line endings differ)"


def update_record(folder: Path, choice: CodeChoice, names: Sequence[str] = ()) -> None:
    """Update a folder's record after its code is loaded; `names` are the names of code in its config."""
    record = read_record(folder)
    if record is None:
        store_first_record(folder, choice, names)
        return
    if choice == "stored":
        return
    now, copies = collect_code([*record.names], f"{FOLDER}/changed-{len(record.earlier) + 1}")
    before = {(file.path, file.sha256) for file in record.files}
    if {(file.path, file.sha256) for file in now.files} <= before:
        return
    if choice == "changed":
        versions = checkpoint.versions(folder / "checkpoint")
        rounds = int(versions[0].name) if versions else 0
        old = {"rounds": rounds, "names": dict(record.names), "files": [asdict(f) for f in record.files]}
        store(folder, Record(now.names, now.files, (*record.earlier, old)), copies)
        say(f"{folder}: resuming with the changed code; {FILE} also keeps the original")


def store_first_record(folder: Path, choice: CodeChoice, names: Sequence[str]) -> None:
    """Store the code of a run that a version without `sources.json` started."""
    record, copies = collect_code(names, FOLDER)
    if not record.files:
        return
    reason = f"{folder} was started by a version of kedge that did not store the user's code"
    if choice == "stored":
        raise RequestError(
            f"{reason}, so there is no copy to execute. Resume it without --use-stored-code: kedge then uses "
            f"the current code of {', '.join(names)}."
        )
    say(f"{reason}: kedge cannot compare {', '.join(names)} and resumes with the current code")
    store(folder, record, copies)
