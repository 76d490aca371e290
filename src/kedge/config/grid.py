"""A sweep: an experiment with a table [grid], whose keys are keys of the config and whose values are lists.

Every combination of the values is a cell. Keys with commas between them are set together, and each value is
a list with one entry per key: "data, model" = [["mnist", "lenet5"], ["cifar10", "vgg11"]]. The name of a cell
lists its settings in characters that any file system takes: method=feddyn,partition.alpha=0.1.
"""

import hashlib
import re
from collections.abc import Mapping, Sequence
from itertools import product
from typing import Any, NamedTuple

from kedge.config.document import override, written
from kedge.config.experiment import Experiment, options_of, resolve
from kedge.config.factories import factory_of
from kedge.config.stages import observed, rebuilding, stages_of
from kedge.core.errors import RequestError
from kedge.data.partitions.partition import PARTITIONS

EXAMPLE = 'method = ["fedavg", "feddyn"], "partition.alpha" = [0.1, 0.3]'
REFUSED = {
    "seed": "seeds are counted: --seeds N, from --seed S on",
    "name": "a name changes nothing in a run",
}
LONGEST = 200  # characters of a folder's name; file systems take 255 bytes


class Cell(NamedTuple):
    """One combination."""

    name: str
    settings: dict[str, Any]
    experiment: Experiment


def cells(document: Mapping[str, Any]) -> list[Cell]:
    """All combinations of a document's grid, each one checked as far as that goes without its data."""
    grid = grid_of(document)
    plain = {key: value for key, value in document.items() if key != "grid"}
    every = [apart(dict(zip(grid, values, strict=True))) for values in product(*grid.values())]
    found: list[Cell] = []
    known: dict[str, str] = {}
    for name, settings in zip(names(every), every, strict=True):
        try:
            experiment = resolve(override(plain, settings))
            check(experiment)
        except RequestError as error:
            raise RequestError(f"grid, cell {name}: {error}") from None
        config = experiment.toml()
        if config in known:
            raise RequestError(f"grid: {known[config]} and {name} are the same experiment. Leave one out.")
        known[config] = name
        found.append(Cell(name, settings, experiment))
    return found


def grid_of(document: Mapping[str, Any]) -> dict[str, list[Any]]:
    """The keys and their lists."""
    table = document.get("grid")
    if not isinstance(table, Mapping) or not table:
        raise RequestError(
            f"grid = {table!r}: need a table [grid] with a list of values for each key, such as {EXAMPLE}."
            if "grid" in document
            else f"the experiment has no table [grid]. Add one with lists of values, such as {EXAMPLE}."
        )
    grid = flat(table)
    for key, values in grid.items():
        if not isinstance(values, list):
            raise RequestError(f"grid.{key} = {values!r}: need a list of values, such as [{values!r}].")
        if not values:
            raise RequestError(f"grid.{key} = []: need at least one value.")
        for single in keys_of(key):
            if single in REFUSED:
                raise RequestError(f"grid.{key} = {values!r}: {REFUSED[single]}.")
            if sum(single in keys_of(other) for other in grid) > 1 or keys_of(key).count(single) > 1:
                raise RequestError(f"grid: {single} is varied twice. Name it once.")
        check_paired(key, values)
        twice = next((value for place, value in enumerate(values) if value in values[:place]), None)
        if twice is not None:
            raise RequestError(f"grid.{key} = {values!r}: {twice!r} stands there twice.")
    return grid


def keys_of(key: str) -> list[str]:
    """The keys of the config that a key of the grid sets: "data, model" sets two together."""
    return [single.strip() for single in key.split(",")]


def check_paired(key: str, values: list[Any]) -> None:
    """Raise if keys are set together and a value does not have one entry per key."""
    count = len(keys_of(key))
    for value in values if count > 1 else ():
        if not isinstance(value, list) or len(value) != count:
            raise RequestError(
                f"grid.{key}: {value!r} stands for {count} keys that are set together, so it needs a list "
                f"of {count} values."
            )


def apart(settings: Mapping[str, Any]) -> dict[str, Any]:
    """The settings with keys that are set together written one by one."""
    found: dict[str, Any] = {}
    for key, value in settings.items():
        keys = keys_of(key)
        found |= dict(zip(keys, value, strict=True)) if len(keys) > 1 else {keys[0]: value}
    return found


def varied_keys(document: Mapping[str, Any]) -> list[str]:
    """The keys of the config that a document's grid varies; none if it has no grid."""
    grid = document.get("grid")
    return [single for key in (flat(grid) if isinstance(grid, Mapping) else ()) for single in keys_of(key)]


def flat(table: Mapping[str, Any], path: str = "") -> dict[str, Any]:
    """Tables inside the grid as dotted keys, so that they may be written with or without quotes."""
    found: dict[str, Any] = {}
    for key, value in table.items():
        found |= flat(value, f"{path}{key}.") if isinstance(value, Mapping) else {f"{path}{key}": value}
    return found


def check(experiment: Experiment) -> None:
    """Make what can be made without data, for the sake of its errors."""
    rebuilding(observed(stages_of(experiment), experiment.evaluation.all))
    factory_of("partition", PARTITIONS, experiment.partition["name"])(**options_of(experiment.partition))


def names(every: Sequence[Mapping[str, Any]]) -> list[str]:
    """A name for each combination that no other has."""
    found: list[str] = []
    for settings in every:
        whole = ",".join(f"{key}={safe(value)}" for key, value in settings.items())
        if len(whole) > LONGEST:
            whole = f"{whole[: LONGEST - 9]}-{hashlib.sha256(whole.encode()).hexdigest()[:8]}"
        number = sum(re.fullmatch(re.escape(whole) + r"(-\d+)?", other) is not None for other in found)
        found.append(f"{whole}-{number + 1}" if whole in found else whole)
    return found


def safe(value: Any) -> str:
    """A value in characters that any file system takes."""
    if isinstance(value, int | float):
        return written(value)
    return re.sub(r"[^\w.+-]+", "-", re.sub(r"\s", "", written(value)), flags=re.ASCII).strip("-")
