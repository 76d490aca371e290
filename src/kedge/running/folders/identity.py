"""The identity of a run: everything that determines its numbers, as a flat dict of plain values.

kedge.json in the run's folder contains the identity, and every checkpoint its sha256. A resumed run must have
the same identity. Each value has the same text in every process: a function is represented by its module and
name, a dataclass by its fields, a tensor by its sha256.
"""

import functools
import hashlib
import json
import math
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import fields, is_dataclass
from enum import Enum
from pathlib import Path, PurePath
from types import BuiltinFunctionType, FunctionType, MethodType
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from kedge.config.experiment import Experiment
from kedge.config.task import Task
from kedge.core.algorithm import Algorithm
from kedge.core.errors import RequestError
from kedge.data.federation import Federation
from kedge.running.folders.marker import read_marker
from kedge.version import __version__

Identity = dict[str, Any]

FREE = ("name", "rounds", "checkpoint", "engine")  # keys of a config that a resumed run may change
PATHS = ("data.path", "data.verify", "partition.path")  # locations of files, and whether to verify them
LISTED = 12  # differences that an error names one by one
WIDE = 120  # characters of a value in an error


def experiment_identity(experiment: Experiment) -> Identity:
    """The identity of a run of the command line: its resolved config, without the keys that may change.

    `rounds` is not part of it, because a run may be made longer; the rounds at which its stages start are.
    """
    config = experiment.tables()
    kept = {key: value for key, value in config.items() if key not in FREE}
    starts = zip(config["then"], experiment.starts, strict=True)
    kept["then"] = [{**row, "at": None if row["at"] is None else start} for row, start in starts]
    found = {"call": "kedge run", **flat(kept), "engine.precision": experiment.engine.precision}
    return {key: without_folder(value) for key, value in found.items() if key not in PATHS}


def call_identity(task: Task, algorithm: Algorithm | str, module: nn.Module, **settings: Any) -> Identity:
    """The identity of a run of kedge.train; `settings` are the arguments that its task does not contain."""
    local = task.stages[0].local
    arguments = {
        "seed": task.seed,
        "method": algorithm,
        **{f.name: getattr(local, f.name) for f in fields(local)},
        "participation": task.participation,
        "augment": task.federation.augment,
        "statistics": task.model.statistics,
        "precision": task.precision,
        "on_divergence": task.on_divergence,
        "evaluate_every": task.evaluate_every,
        "tune": task.tune,
        "tune_every": task.tune_every,
        "headline": task.headline,
        "measure": task.measure,
        **({"privacy": task.privacy} if task.privacy.active else {}),
        **settings,
    }
    return {
        "call": "kedge.train",
        **flat(arguments),
        **data_identity(task.federation),
        **module_identity(module),
    }


def without_folder(value: Any) -> Any:
    """path/to/file.py:name without the folder: file.py:name; other values unchanged."""
    return re.sub(r"^.*[/\\](?=[^/\\]+\.py:\w+$)", "", value) if isinstance(value, str) else value


def data_identity(federation: Federation) -> Identity:
    """The identity of a federation: its samples, its labels, and the sample numbers of every client."""
    test = federation.test
    return {
        "clients": len(federation.clients),
        "data.samples": fingerprint(federation.pool.x),
        "data.labels": fingerprint(federation.pool.y),
        "data.held": fingerprint(joined(federation.clients)),
        "data.local_tests": fingerprint(joined(federation.local_tests)),
        "data.test.samples": fingerprint(test.x) if test else None,
        "data.test.labels": fingerprint(test.y) if test else None,
    }


def joined(lists: Iterable[np.ndarray[Any, Any]]) -> np.ndarray[Any, Any]:
    """Lists of sample numbers concatenated in one array, each preceded by its length."""
    return np.concatenate([np.concatenate([[len(samples)], samples]) for samples in lists]).astype("<i8")


def module_identity(module: nn.Module) -> Identity:
    """The identity of a network: its class, description, and the names and shapes of its parameters.

    The values are not part of it: a resumed run takes them from its checkpoint.
    """
    frozen = {name for name, p in module.named_parameters() if not p.requires_grad}
    leaves = {
        f"module.{name}": shape_of(value) + (", frozen" if name in frozen else "")
        for name, value in module.state_dict().items()
        if isinstance(value, Tensor)
    }
    text = re.sub(r" at 0x[0-9a-fA-F]+", "", str(module))
    return {"module": type(module).__name__, "module.text": text, **leaves}


def flat(settings: Mapping[str, Any]) -> Identity:
    """Settings as a flat dict with dotted keys."""
    found: Identity = {}
    for key, value in settings.items():
        found |= plain_entries(str(key), value)
    return found


def plain_entries(key: str, value: Any, enclosing: tuple[int, ...] = ()) -> Identity:
    """`value` as plain values under `key` and nested keys; `enclosing`: ids of the values it is part of."""
    if is_plain(value):
        return {key: plain(value)}
    if isinstance(value, Tensor | np.ndarray | np.generic):
        return {key: fingerprint(value)}
    if isinstance(value, torch.dtype | torch.device | np.dtype | PurePath):
        return {key: str(value)}
    if isinstance(value, type):
        return {key: name_of(value)}
    if id(value) in enclosing:
        return {key: "itself"}
    if isinstance(value, nn.Module):
        parts: dict[str, Any] = dict(value.state_dict())
        head: Any = f"{name_of(type(value))} {value}"
    else:
        head, parts = type_and_parts(value)
    found: Identity = {} if head is None else {key: head}
    for name, part in parts.items():
        found |= plain_entries(f"{key}.{name}", part, (*enclosing, id(value)))
    return found


def type_and_parts(value: Any) -> tuple[Any, dict[str, Any]]:
    """The type of a value as a plain value, and its parts by name."""
    if isinstance(value, Mapping):
        return None, {str(k): value[k] for k in sorted(value, key=str)}
    if isinstance(value, list | tuple):
        if all(is_plain(part) for part in value):
            return [plain(part) for part in value], {}
        return f"{len(value)} items", {str(number): part for number, part in enumerate(value)}
    if isinstance(value, set | frozenset):
        return sorted(json.dumps(plain_entries("", part)) for part in value), {}
    if isinstance(value, functools.partial):
        return "functools.partial", {"of": value.func, "args": value.args, **value.keywords}
    if isinstance(value, MethodType):
        return name_of(value.__func__), {"self": value.__self__}
    if isinstance(value, FunctionType):
        return name_of(value), function_parts(value)
    if isinstance(value, BuiltinFunctionType):
        return name_of(value), {}
    if is_dataclass(value):
        return name_of(type(value)), {f.name: getattr(value, f.name) for f in fields(value)}
    # Private attributes may be caches, which are no settings.
    public = {k: v for k, v in sorted(getattr(value, "__dict__", {}).items()) if not k.startswith("_")}
    return name_of(type(value)), public


def function_parts(function: FunctionType) -> dict[str, Any]:
    """The defaults of a function and the values in its closure; not lists, dicts and sets (maybe caches)."""
    found: dict[str, Any] = {}
    if function.__defaults__:
        found["defaults"] = function.__defaults__
    if function.__kwdefaults__:
        found |= function.__kwdefaults__
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        try:
            value = cell.cell_contents
        except ValueError:  # not bound yet
            continue
        if not isinstance(value, list | dict | set):
            found[name] = value
    return found


def is_plain(value: Any) -> bool:
    """Whether `plain` can turn this value into a JSON value."""
    return value is None or isinstance(value, bool | int | float | str | Enum)


def plain(value: Any) -> Any:
    """The JSON value of a plain value."""
    if isinstance(value, Enum):
        return f"{name_of(type(value))}.{value.name}"
    return repr(value) if isinstance(value, float) and not math.isfinite(value) else value


def name_of(thing: Callable[..., Any]) -> str:
    """The module and name of a function or a class.

    For kedge's own code the module is just kedge, so files may move. A user's file is imported as a module
    with a digest in its name (config/imports.py); the digest is removed.
    """
    module = str(getattr(thing, "__module__", None))
    module = re.sub(r"^kedge\..*", "kedge", module)
    module = re.sub(r"^kedge_file_(.+)_[0-9a-f]{12}$", r"\1", module)
    return f"{module}:{getattr(thing, '__qualname__', type(thing).__qualname__)}"


def fingerprint(values: Any) -> str:
    """The shape, dtype and sha256 of a tensor or an array."""
    if isinstance(values, Tensor):
        content: Any = values.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy()
    else:
        values = np.asarray(values)
        content = (
            np.ascontiguousarray(values) if not values.dtype.hasobject else repr(values.tolist()).encode()
        )
    return f"{shape_of(values)}, sha256 {hashlib.sha256(memoryview(content).cast('B')).hexdigest()}"


def shape_of(values: Any) -> str:
    """The shape and dtype of a tensor or an array, such as 3×4 float32."""
    sizes = "×".join(map(str, values.shape)) or "one"
    return f"{sizes} {str(values.dtype).removeprefix('torch.')}"


def digest(identity: Identity) -> str:
    """The sha256 of an identity; every checkpoint contains it."""
    return hashlib.sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest()


def digest_in(folder: Path | None) -> str | None:
    """The sha256 of the identity of the run in a folder; None if it has none."""
    marker = read_marker(folder) if folder else None
    return digest(marker.identity) if marker and marker.identity else None


def check_identity(folder: Path, now: Identity, remedy: str) -> None:
    """Raise if the identity `now` differs from that of the run in `folder`; name the differences."""
    marker = read_marker(folder)
    if marker is None:
        return
    now = json.loads(json.dumps(now))
    raise_differences(folder, differences(marker.identity, now, marker.kedge == __version__), remedy)


def raise_differences(folder: Path, found: list[str], remedy: str) -> None:
    """Raise if differences were found; `remedy` says what to do."""
    if found:
        more = f"; and {len(found) - LISTED} more" if len(found) > LISTED else ""
        raise RequestError(
            f"the run in {folder} cannot resume, because it started with other settings: "
            f"{'; '.join(found[:LISTED])}{more}. {remedy}"
        )


def differences(before: Identity, now: Identity, same_version: bool = True) -> list[str]:
    """The differences between two identities, key by key, with both values.

    A key that only one of them has is a difference only if both are of the same version of kedge, because
    versions may have different settings.
    """
    keys = [
        key for key in {**before, **now} if key not in before or key not in now or before[key] != now[key]
    ]
    # If a table names another factory now, keys that only one of the two has are not listed.
    renamed = {key.removesuffix(".name") for key in keys if key in before and key in now}
    found = []
    for key in keys:
        if key in before and key in now:
            old, new = shown(before[key], now[key])
            found.append(f"{key} was {old}, and is {new} now")
        elif same_version and not any(key.startswith(f"{table}.") for table in renamed):
            old, new = shown(before.get(key), now.get(key))
            gone = f"{key} was {old}, and is not there now"
            found.append(gone if key in before else f"{key} was not there, and is {new} now")
    return found


def shown(old: Any, new: Any) -> tuple[str, str]:
    """Two values as text for an error; for texts with several lines, the first lines that differ."""
    if isinstance(old, str) and isinstance(new, str) and "\n" in old + new:
        pairs = zip([*old.splitlines(), ""], [*new.splitlines(), ""], strict=False)
        old, new = next(((a.strip(), b.strip()) for a, b in pairs if a != b), (old, new))
    left, right = (json.dumps(value, ensure_ascii=False) for value in (old, new))
    return cut(left), cut(right)


def cut(text: str) -> str:
    """The text, shortened for an error: digests to 12 digits, the whole text to WIDE characters."""
    text = re.sub(r"(?<=sha256 )([0-9a-f]{12})[0-9a-f]{52}", r"\1…", text)
    return text if len(text) <= WIDE else f"{text[: WIDE - 1]}…"
