"""Load a user's own method, and list its checks: all checks that need no knowledge of its paper."""

import inspect
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

from kedge.audit.check import Check
from kedge.audit.formulas import first_formula
from kedge.audit.properties.finite_differences import has_objective
from kedge.audit.references import gradients, objectives
from kedge.audit.registry.every_method import property_checks
from kedge.config.imports import import_method, import_object, load_module
from kedge.core.errors import RequestError
from kedge.core.schedules import all_units


class OwnMethod(NamedTuple):
    """A user's method under audit."""

    name: str  # in tables
    formula: str
    checks: list[Check]
    note: str | None  # a property that cannot be checked, and the reason


def is_own_method(method: str) -> bool:
    """Whether `method` names a function in a file or module of the user."""
    return ":" in method or method.endswith(".py")


def load_own_methods(paths: Sequence[str], objective: str | None) -> list[OwnMethod]:
    """Import the methods at `paths`, such as my_file.py:factory, and the function `objective`."""
    if objective is not None and len(paths) != 1:
        raise RequestError(
            f"--objective {objective} belongs to one method of your own, {len(paths)} are named: "
            "kedge audit my_file.py:factory --objective my_file.py:objective."
        )
    function = None if objective is None else import_object(objective)
    if function is not None and not callable(function):
        raise RequestError(
            f"--objective {objective} is of type {type(function).__name__}: need a function "
            "objective(f, w, anchor, known) that returns the local objective."
        )
    short_names = [short_name(path) for path in paths]
    names = [
        path if short_names.count(name) > 1 else name for path, name in zip(paths, short_names, strict=True)
    ]
    return [load_own_method(path, name, function) for path, name in zip(paths, names, strict=True)]


def load_own_method(path: str, name: str, objective: objectives.Objective | None) -> OwnMethod:
    """Import one method. The gradient of `objective`, if given, replaces finite differences."""
    algorithm = import_method(path)
    checks, note = property_checks(name, algorithm), None
    if objective is not None:
        open_units = 3 if algorithm.schedule is all_units else 2
        run = partial(gradients.local_gradient, algorithm, objective, open_units)
        checks = [check for check in checks if check.kind != "gradient"]
        checks.insert(1, Check(name, "closed form", "gradient", run))
    elif not has_objective(algorithm):
        note = (
            f"{name}: its gradient is not checked, because a correction changes the gradient by a hook. "
            "Write the local objective as a function objective(f, w, anchor, known) and pass it: "
            "--objective my_file.py:objective."
        )
    return OwnMethod(name, formula_of(path), checks, note)


def formula_of(path: str) -> str:
    """The formula in the docstring of the method's module, or else of the function at `path`."""
    method = import_object(path)
    module = (inspect.getmodule(method) if callable(method) else None) or load_module(path)
    return first_formula(module.__doc__ or (callable(method) and inspect.getdoc(method)) or "")


def short_name(path: str) -> str:
    """The path without folders: method.py:factory."""
    file, _, attribute = path.rpartition(":")
    return f"{Path(file).name}:{attribute}" if file.endswith(".py") else path
