"""kedge.json, the file that marks a folder as made by kedge: its format, its kind, the version, the identity.

Folders of version 0.1 have no such file: their format is 1, and they are read and resumed as before.
"""

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal, get_args

from kedge.core.errors import DataError, RequestError
from kedge.version import __version__

FILE = "kedge.json"
PLAN = "runs.json"  # in the folder of several runs: the list of them
SWEEP = "sweep.json"  # the same for a sweep, with its cells
FORMAT = 2  # the format of the folders that this version writes
Kind = Literal["run", "runs", "sweep"]


@dataclass(frozen=True)
class Marker:
    """The content of kedge.json."""

    kind: Kind
    identity: dict[str, Any] = field(default_factory=dict)  # of the run (identity.py)
    kedge: str = __version__
    format: int = FORMAT

    def content(self) -> str:
        """The text of the file; equal for equal runs, on every machine."""
        rows = asdict(self)
        return json.dumps({k: rows[k] for k in ("format", "kind", "kedge", "identity")}, indent=1) + "\n"


def read_marker(folder: Path) -> Marker | None:
    """Read kedge.json; None for a folder of version 0.1, or if kedge did not make the folder."""
    file = folder / FILE
    if not file.is_file():
        return None
    try:
        found = json.loads(file.read_bytes())
        number, version = int(found["format"]), str(found["kedge"])
        if number > FORMAT:
            raise RequestError(
                f"{folder} was written by kedge {version}, newer than this one ({__version__}): its format "
                f"is {number}; this version reads formats up to {FORMAT}. Install kedge {version} or later."
            )
        kind, identity = found["kind"], found["identity"]
        if kind not in get_args(Kind) or not isinstance(identity, dict):
            raise ValueError(f"its kind is {kind!r}")
    except RequestError:
        raise
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise DataError(
            f"{file} is damaged ({error!r}). Restore it from a copy. If you have none, delete the file: "
            "kedge then reads the folder as one of version 0.1 and does not compare settings."
        ) from error
    return Marker(kind, identity, version, number)


def planned_runs(folder: Path) -> list[dict[str, Any]]:
    """The list of the runs of a folder, each with its folder and config; empty for a single run."""
    for name in (PLAN, SWEEP):
        if not (folder / name).is_file():
            continue
        try:
            listed = json.loads((folder / name).read_bytes())
            rows: list[dict[str, Any]] = listed if isinstance(listed, list) else listed["runs"]
            if all(isinstance(row["folder"], str) and isinstance(row["config"], str) for row in rows):
                return rows
            raise ValueError("a run has no folder or no config")
        except (ValueError, KeyError, TypeError) as error:
            raise DataError(
                f"{folder / name}, the list of the runs in this folder, is damaged ({error!r}). Restore it "
                "from a copy; or resume the runs one by one, with --resume and the folder of each."
            ) from error
    return []
