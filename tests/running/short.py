"""Short runs for tests of runs that train at once."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from kedge.running.config import Experiment, resolve
from kedge.running.document import override, read
from kedge.running.grouping import Member

SMALL: dict[str, Any] = {
    "rounds": 4,
    "model.name": "mlp",
    "training.epochs": 1,
    "partition.clients": 6,
    "participation.per_round": 3,
    "checkpoint.every": 2,
}


def experiment(**settings: Any) -> Experiment:
    """The quickstart cut short; keys have __ for a dot."""
    return resolve(
        override(read("quickstart"), SMALL | {k.replace("__", "."): v for k, v in settings.items()})
    )


def members(top: Path, experiments: Sequence[Experiment], start: Any = "new") -> list[Member]:
    return [Member(top / f"run{number}", own, start) for number, own in enumerate(experiments)]
