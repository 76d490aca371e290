"""A sweep: an experiment with a table [grid], whose keys are keys of the config and whose values are lists.

Every combination of the values is a cell. Keys with commas between them are set together, and each value is
a list with one entry per key: "data, model" = [["mnist", "lenet5"], ["cifar10", "vgg11"]]. The name of a cell
lists its settings in characters that all file systems allow: method=feddyn,partition.alpha=0.1.
"""

import hashlib
import re
from collections.abc import Mapping, Sequence
from itertools import product
from typing import Any, NamedTuple

from kedge.config.document import override
from kedge.config.experiment import Experiment, options_of, resolve
from kedge.config.factories import factory_of
from kedge.config.method_string import as_text
from kedge.config.stages import common_rebuild, stages_of, with_measurements
from kedge.core.errors import RequestError

EXAMPLE = 'method = ["fedavg", "feddyn"], "partition.alpha" = [0.1, 0.3]'
REFUSED = {
    "seed": "use --seeds N, which counts up from --seed S",
    "name": "the name does not change a run",
}
LONGEST = 200  # characters of a folder's name; file systems allow 255 bytes


class Cell(NamedTuple):
    """One combination of the values of a grid."""

    name: str
    settings: dict[str, Any]
    experiment: Experiment


def cells(document: Mapping[str, Any]) -> list[Cell]:
    """All combinations of a document's grid, each checked as far as possible without its data."""
    grid = grid_of(document)
    base = {key: value for key, value in document.items() if key != "grid"}
    combinations = [
        single_settings(dict(zip(grid, values, strict=True))) for values in product(*grid.values())
    ]
    found: list[Cell] = []
    known: dict[str, str] = {}  # configuration -> name of its cell
    for name, settings in zip(cell_names(combinations), combinations, strict=True):
        try:
            experiment = resolve(override(base, settings))
            check_buildable(experiment)
        except RequestError as error:
            raise RequestError(f"grid, cell {name}: {error}") from None
        config = experiment.toml()
        if config in known:
            raise RequestError(f"grid: {known[config]} and {name} are the same experiment. Leave one out.")
        known[config] = name
        found.append(Cell(name, settings, experiment))
    return found


def grid_of(document: Mapping[str, Any]) -> dict[str, list[Any]]:
    """The table [grid] of a document, checked, as one flat dict: key -> list of values."""
    table = document.get("grid")
    if not isinstance(table, Mapping) or not table:
        raise RequestError(
            f"grid = {table!r}: need a table [grid] with a list of values for each key, such as {EXAMPLE}."
            if "grid" in document
            else f"the experiment has no table [grid]. Add one with lists of values, such as {EXAMPLE}."
        )
    grid = flat_keys(table)
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
            raise RequestError(f"grid.{key} = {values!r}: {twice!r} is in the list twice.")
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
                f"grid.{key}: {value!r} sets {count} keys together, so it must be a list of {count} values."
            )


def single_settings(settings: Mapping[str, Any]) -> dict[str, Any]:
    """The settings with one key each; a key "data, model" becomes two."""
    found: dict[str, Any] = {}
    for key, value in settings.items():
        keys = keys_of(key)
        found |= dict(zip(keys, value, strict=True)) if len(keys) > 1 else {keys[0]: value}
    return found


def varied_keys(document: Mapping[str, Any]) -> list[str]:
    """The keys of the config that a document's grid varies; none if it has no grid."""
    grid = document.get("grid")
    return [
        single for key in (flat_keys(grid) if isinstance(grid, Mapping) else ()) for single in keys_of(key)
    ]


def flat_keys(table: Mapping[str, Any], path: str = "") -> dict[str, Any]:
    """The grid with dotted keys instead of nested tables: a file may write them with or without quotes."""
    found: dict[str, Any] = {}
    for key, value in table.items():
        found |= flat_keys(value, f"{path}{key}.") if isinstance(value, Mapping) else {f"{path}{key}": value}
    return found


def check_buildable(experiment: Experiment) -> None:
    """Raise if stages or partition cannot be made; this needs no data."""
    common_rebuild(with_measurements(stages_of(experiment), experiment.evaluation.all))
    factory_of("partition", experiment.partition["name"])(**options_of(experiment.partition))


def cell_names(combinations: Sequence[Mapping[str, Any]]) -> list[str]:
    """A unique name for each combination."""
    names: list[str] = []
    for settings in combinations:
        name = ",".join(f"{key}={path_part(value)}" for key, value in settings.items())
        if len(name) > LONGEST:
            name = f"{name[: LONGEST - 9]}-{hashlib.sha256(name.encode()).hexdigest()[:8]}"
        number = sum(re.fullmatch(re.escape(name) + r"(-\d+)?", other) is not None for other in names)
        names.append(f"{name}-{number + 1}" if name in names else name)
    return names


def path_part(value: Any) -> str:
    """A value in characters that all file systems allow."""
    if isinstance(value, int | float):
        return as_text(value)
    return re.sub(r"[^\w.+-]+", "-", re.sub(r"\s", "", as_text(value)), flags=re.ASCII).strip("-")
