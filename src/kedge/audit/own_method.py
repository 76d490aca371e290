"""A user's own method under audit: everything that can be asked without knowing its paper."""

import inspect
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

from kedge.audit.finding import Check
from kedge.audit.formulas import first_formula
from kedge.audit.properties.finite_differences import has_objective
from kedge.audit.references import gradients, objectives
from kedge.audit.registry.every_method import property_checks
from kedge.config.imports import imported, imported_method, module_of
from kedge.core.errors import RequestError
from kedge.core.schedules import all_units


class Own(NamedTuple):
    """A user's method: its row's name, its formula, its checks, and what stays unchecked."""

    name: str
    formula: str
    checks: list[Check]
    note: str | None


def is_own(method: str) -> bool:
    """Whether this names something in a file or module, and not a method of kedge."""
    return ":" in method or method.endswith(".py")


def own_methods(given: Sequence[str], objective: str | None) -> list[Own]:
    """The users' methods of these names."""
    if objective is not None and len(given) != 1:
        raise RequestError(
            f"--objective {objective} belongs to one method of your own, {len(given)} are named: "
            "kedge audit my_file.py:factory --objective my_file.py:objective."
        )
    written = None if objective is None else imported(objective)
    if written is not None and not callable(written):
        raise RequestError(
            f"--objective {objective} is of type {type(written).__name__}: need a function "
            "objective(f, w, anchor, known) that returns the local objective."
        )
    short = [short_name(name) for name in given]
    labels = [name if short.count(label) > 1 else label for name, label in zip(given, short, strict=True)]
    return [own_method(name, label, written) for name, label in zip(given, labels, strict=True)]


def own_method(given: str, name: str, objective: objectives.Objective | None) -> Own:
    """The checks of one; an objective written out takes the place of finite differences."""
    algorithm = imported_method(given)
    checks, note = property_checks(name, algorithm), None
    if objective is not None:
        opened = 3 if algorithm.schedule is all_units else 2
        look = partial(gradients.local_gradient, algorithm, objective, opened)
        checks = [c for c in checks if c.kind != "gradient"]
        checks.insert(1, Check(name, "closed form", "gradient", look))
    elif not has_objective(algorithm):
        note = (
            f"{name}: its gradient is not checked, for a correction changes it by a hook. Write the local "
            "objective out as objective(f, w, anchor, known) and give it: --objective my_file.py:objective."
        )
    return Own(name, formula_of(given), checks, note)


def formula_of(given: str) -> str:
    """The formula in the docstring of the module that defines it, or else of the function itself."""
    own = imported(given)
    home = (inspect.getmodule(own) if callable(own) else None) or module_of(given)
    return first_formula(home.__doc__ or (callable(own) and inspect.getdoc(own)) or "")


def short_name(given: str) -> str:
    """A file without its folders."""
    place, _, attribute = given.rpartition(":")
    return f"{Path(place).name}:{attribute}" if place.endswith(".py") else given
