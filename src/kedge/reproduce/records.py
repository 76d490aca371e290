"""Records of finished runs: one JSON line per run, small enough to keep in a repository.

A folder of results has a folder per table with one file per sitting (one command on one machine). All files
are read, so several sittings add up. An incomplete last line, left by a killed process, is ignored. A record
counts for every table that needs the same experiment.
"""

import json
import secrets
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from kedge.core.errors import DataError
from kedge.measure.cells import parse_cell

SUFFIX = ".jsonl"


@dataclass(frozen=True)
class Sitting:
    """One command on one machine."""

    started: str  # ISO 8601, UTC
    command: str
    hardware: str
    kedge: str
    torch: str


@dataclass(frozen=True)
class Record:
    """One finished run."""

    table: str  # the table it was trained for
    cell: Mapping[str, Any]
    seed: int
    scale: str  # "full", "small" or "smoke"
    identity: str  # sha256 of everything that determines the run's numbers, except seed and precision
    precision: str  # fp64, fp32, tf32 or bf16
    rounds: int
    samples: int  # training samples, summed over rounds
    elapsed: float  # seconds from the start of the sitting to the end of this run
    history: Mapping[str, Sequence[tuple[int, float]]]  # metric -> (round, value) of every evaluation
    sitting: Sitting
    diverged: bool = False

    @property
    def key(self) -> tuple[str, int]:
        """Identity and seed, which are equal for two records of the same run."""
        return self.identity, self.seed


def curves_of(history: Sequence[Mapping[str, Any]]) -> dict[str, list[tuple[int, float]]]:
    """The accuracies, losses and feature metrics of a history, by metric, rounded to six digits."""
    curves: dict[str, list[tuple[int, float]]] = {}
    for line in history:
        for name, value in line.items():
            if (parse_cell(name) or name.startswith("features.")) and isinstance(value, int | float):
                curves.setdefault(name, []).append((int(line["round"]), float(f"{value:.6g}")))
    return curves


def new_file_name(sitting: Sitting) -> str:
    """A file name for the records of a sitting, unique even if two machines start in the same second."""
    return f"{sitting.started.replace(':', '-')}-{secrets.token_hex(2)}{SUFFIX}"


def write_record(file: Path, record: Record) -> None:
    """Append a run to the file of its sitting."""
    file.parent.mkdir(parents=True, exist_ok=True)
    line = json.dumps(asdict(record), ensure_ascii=False, separators=(",", ":")) + "\n"
    with file.open("a", encoding="utf-8") as out:
        out.write(line)
        out.flush()


def read_records(folder: Path) -> list[Record]:
    """The records of all sittings and tables in a folder; the first of two records of one run counts."""
    found: dict[tuple[str, int], Record] = {}
    for file in sorted(folder.glob(f"*/*{SUFFIX}")):
        for record in records_in(file):
            found.setdefault(record.key, record)
    return list(found.values())


def records_in(file: Path) -> Iterable[Record]:
    """The records of one sitting."""
    lines = file.read_text(encoding="utf-8").splitlines(keepends=True)
    for number, line in enumerate(lines, 1):
        if not line.endswith("\n"):
            break  # a killed process was writing it
        try:
            values = json.loads(line)
            yield Record(**{**values, "sitting": Sitting(**values["sitting"])})
        except (ValueError, TypeError, KeyError) as error:
            raise DataError(f"{file}, line {number} is damaged ({error!r}). Remove the line.") from error


def sitting_seconds(records: Iterable[Record]) -> dict[Sitting, float]:
    """The seconds of every sitting to the end of its last run, including compilation."""
    found: dict[Sitting, float] = {}
    for record in records:
        found[record.sitting] = max(found.get(record.sitting, 0.0), record.elapsed)
    return found
