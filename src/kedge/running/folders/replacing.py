"""The check before --force replaces a folder: kedge wrote the folder, and it contains nothing else.

The folder of a run contains the files in RUN, checkpoints and models. The folder of several runs, or of a
sweep, contains a list of the runs, their folders, and a plot. Folders of version 0.1 have no kedge.json and
are recognized by their other files.
"""

import json
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path

from kedge.core.errors import DataError, RequestError
from kedge.running.folders.marker import FILE, PLAN, SWEEP, planned_runs, read_marker

CONFIG = "config.toml"
SOURCES = "sources"  # copies of the user's own code; sources.json lists them
RECORD = f"{SOURCES}.json"
FEDERATION = ("clients.json", "released.safetensors")  # of kedge serve
RUN = (
    FILE, CONFIG, RECORD, "environment.json", "partition.npz", "history.jsonl", "clients.jsonl", *FEDERATION
)  # fmt: skip
VERSION = ("state.json", "tensors.safetensors", "manifest.json")  # the files of a checkpoint
MODELS = ("model", "average", "all", "last-two")  # and the models that a history names
PLOT = "accuracy.png"
ON_CLUSTER = ".on-cluster"  # while runs train as tasks of a cluster: every machine must see this file
SECTIONS = (
    "data",
    "partition",
    "model",
    "method",
    "schedule",
    "optimizer",
    "training",
    "evaluation",
    "engine",
)
CALL = ("call", "module", "clients", "method", "local", "participation")  # keys of kedge.train's config
NAMED = 5  # foreign files that an error names one by one


def check_replaceable(folder: Path) -> None:
    """Raise unless the folder is empty, or kedge wrote it and it contains nothing else."""
    reason = objection(folder)
    if reason:
        raise RequestError(
            f"--force does not replace {folder}: {reason}. It replaces only folders that kedge wrote. "
            "Use another folder with --out DIR, or move these files away yourself."
        )


def objection(folder: Path) -> str | None:
    """The reason why this folder may not be replaced, or None."""
    if folder.is_symlink():
        return f"it is a link to {folder.resolve()}"
    if not folder.is_dir():
        return "it is a file"
    here, current, home = folder.resolve(), Path.cwd(), Path.home().resolve()
    if folder.name in ("", "..") or here in (current, *current.parents):
        return "it is the current folder or a parent of it"
    if here in (home, *home.parents):
        return "it is your home folder or a parent of it"
    if not any(folder.iterdir()):
        return None
    strange = [str(path.relative_to(folder)) for path in foreign_files(folder)]
    if strange:
        more = f" and {len(strange) - NAMED} more" if len(strange) > NAMED else ""
        return f"it contains {', '.join(sorted(strange)[:NAMED])}{more}, which kedge did not write"
    return None


def planned(folder: Path) -> list[Path]:
    """The folders of the runs that a folder lists, relative to it."""
    listed = [Path(row["folder"]) for row in planned_runs(folder)]
    return [path for path in listed if path.parts and not path.is_absolute() and ".." not in path.parts]


def runs_in(folder: Path) -> list[Path]:
    """The folders of the runs that a folder lists, if they exist."""
    return [folder / path for path in planned(folder) if (folder / path).is_dir()]


def foreign_files(folder: Path) -> Iterator[Path]:
    """The files in a folder that kedge did not write; all of them if kedge did not make the folder."""
    kind = kind_of(folder)
    if kind == "run":
        yield from foreign_in_run(folder)
    elif kind == "several":
        yield from foreign_in_runs(folder, planned(folder), Path())
    else:
        yield from folder.iterdir()


def kind_of(folder: Path) -> str | None:
    """'run' or 'several', by kedge.json or the files of version 0.1; None for a folder kedge did not make."""
    try:
        marker, listed = read_marker(folder), planned(folder)
        rows = planned_runs(folder)
    except DataError:
        return None
    if marker:
        return "run" if marker.kind == "run" else "several" if listed else None
    if listed:
        return "several" if all(is_config_of_0_1(row["config"]) for row in rows) else None
    try:
        return "run" if is_config_of_0_1((folder / CONFIG).read_text()) else None
    except (OSError, ValueError):
        return None


def is_config_of_0_1(config: str) -> bool:
    """Whether version 0.1 wrote this config: it has every table, or records a call of kedge.train."""
    try:
        keys = tomllib.loads(config).keys()
    except ValueError:
        return False
    return {"name", "rounds", "seed"} <= keys and (keys >= set(SECTIONS) or keys >= set(CALL))


def foreign_in_run(folder: Path) -> Iterator[Path]:
    """The files that do not belong to the run in this folder."""
    models = {f"{name}.safetensors" for name in (*MODELS, *views(folder / "history.jsonl"))}
    for path in folder.iterdir():
        if path.name == "checkpoint" and is_folder(path):
            yield from foreign_in_checkpoints(path)
        elif path.name == SOURCES and is_folder(path):
            yield from foreign_in_sources(folder)
        elif not (is_file(path) and final_file_name(path) in {*RUN, *models}):
            yield path


def foreign_in_checkpoints(folder: Path) -> Iterator[Path]:
    """The files that do not belong to the checkpoints of a run."""
    for path in folder.iterdir():
        if not (is_folder(path) and re.fullmatch(r"\d+|\.\d+\.tmp", path.name)):
            yield path
            continue
        yield from (p for p in path.iterdir() if not (is_file(p) and final_file_name(p) in VERSION))


def foreign_in_sources(folder: Path) -> Iterator[Path]:
    """The files in sources/ that sources.json does not list."""
    try:
        record = json.loads((folder / RECORD).read_bytes())
        rows = [*record["files"], *(row for old in record["earlier"] for row in old["files"])]
        stored = {str(row["stored"]) for row in rows}
    except (OSError, ValueError, KeyError, TypeError):
        stored = set()
    for path in (folder / SOURCES).rglob("*"):
        compiled = path.parent.name == "__pycache__" and path.suffix == ".pyc"
        listed = path.with_name(final_file_name(path)).relative_to(folder).as_posix() in stored
        if not is_folder(path) and not (is_file(path) and (listed or compiled)):
            yield path


def foreign_in_runs(folder: Path, planned: list[Path], below: Path) -> Iterator[Path]:
    """The files that belong neither to the runs `planned` nor to a parent folder of a run.

    `below` is the position of `folder` in the folder of all runs.
    """
    names = {path.parts[0] for path in planned}
    for path in folder.iterdir():
        final_name = final_folder_name(path.name, names)
        rest = [Path(*run.parts[1:]) for run in planned if run.parts[0] == final_name]
        if not is_folder(path):
            listed = not below.parts and final_file_name(path) in (FILE, PLAN, SWEEP, PLOT, RECORD)
            if not is_file(path) or not (listed or path.name == ON_CLUSTER):
                yield path
        elif path.name == SOURCES and not below.parts and SOURCES not in names:
            yield from foreign_in_sources(folder)
        elif Path() in rest:
            yield from foreign_files(path) if path.name in names or kind_of(path) else foreign_in_run(path)
        elif rest:
            yield from foreign_in_runs(path, rest, below / path.name)
        else:
            yield path


def final_folder_name(name: str, planned: set[str]) -> str:
    """The name of a folder; of a temporary folder that a crash left behind, the name of its run."""
    match = re.fullmatch(r"\.(.+)\.[a-z0-9_]{8}(\.old)?", name)
    return match[1] if match and match[1] in planned else name


def final_file_name(path: Path) -> str:
    """The name of a file; of a temporary file, the name it gets when it is complete."""
    match = re.fullmatch(r"\.(.+)\.tmp", path.name)
    return match[1] if match else path.name


def views(history: Path) -> set[str]:
    """The names of the models with metrics in a history; the run saves each of them."""
    if not is_file(history):
        return set()
    found: set[str] = set()
    for content in history.read_bytes().splitlines()[-1:]:
        try:
            keys = list(json.loads(content))
        except (ValueError, TypeError):
            continue
        found |= {key.split(".")[0] for key in keys if re.match(r"[^.]+\.(global|local)\.", key)}
    return found - {"distributed", "personal"}


def is_file(path: Path) -> bool:
    """Whether this is a file and not a symbolic link."""
    return path.is_file() and not path.is_symlink()


def is_folder(path: Path) -> bool:
    """Whether this is a folder and not a symbolic link."""
    return path.is_dir() and not path.is_symlink()
