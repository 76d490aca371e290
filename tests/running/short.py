"""Short runs for tests of runs that train at once."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from kedge.config.document import override, read
from kedge.config.experiment import Experiment, resolve
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
    """The quickstart cut short; keys have __ for a dot, and a whole table replaces what SMALL says of it."""
    own = {k.replace("__", "."): v for k, v in settings.items()}
    small = {k: v for k, v in SMALL.items() if k.partition(".")[0] not in own}
    return resolve(override(read("quickstart"), small | own))


def members(top: Path, experiments: Sequence[Experiment], start: Any = "new") -> list[Member]:
    return [Member(top / f"run{number}", own, start) for number, own in enumerate(experiments)]
