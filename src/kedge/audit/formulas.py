"""A method's formula in one line, as the module of its factory writes it."""

import inspect
import re
import sys
from collections.abc import Callable, Mapping
from typing import Any

from kedge.algorithms import METHOD_FACTORIES, SCHEDULE_FACTORIES

FACTORIES: Mapping[str, Callable[..., Any]] = {**SCHEDULE_FACTORIES, **METHOD_FACTORIES}
HEADING = re.compile(r"[\w→-]+ \([^()]*\b\d{4}\)[:,]\s*")  # "FedProx (Li et al., 2020): "
SENTENCE = re.compile(r"\.(?:\s+|$)")
BETWEEN = " — "  # the formulas of a schedule and of the method it is over
SIGNS = re.compile(r"[←∇‖⟨⌈Σ√·]")  # not = and +, which prose has too
NO_METHODS = {
    "drift": "Σ_k ‖Δ_k‖² / ‖Σ_k Δ_k‖²; cos(Δ_k^T, Δ_k^t)",
    "features": "Ω[m, n, f] = 1 where sample n has feature f of model m; equal features have |ρ| > γ",
    "theory": "r = (m − 1 + (1 − g·η·(∂f/∂n)²)^s·cos²θ)/m, n*·v* = 1",
    "cost": "Σ f_l + Σ_{l ∈ T} f_l + Σ_{l > min T} f_l multiply-adds; the layers T train",
}


def formula(method: str) -> str:
    """The formulas of a method's parts; empty where none has one."""
    if method in NO_METHODS:
        return NO_METHODS[method]
    names = [part.partition("(")[0] for part in method.split("+")]
    return BETWEEN.join(written(FACTORIES[name]) for name in names if name in FACTORIES)


def written(factory: Callable[..., Any]) -> str:
    """As the docstring of the factory's module has it; where that is about several, the factory's own."""
    own, shared = inspect.getdoc(factory), inspect.getdoc(sys.modules[factory.__module__])
    alone = [one.__module__ for one in FACTORIES.values()].count(factory.__module__) < 2
    return first_formula((alone and shared) or own or "")


def first_formula(text: str) -> str:
    """The first sentence with a formula in it, else the first; to a client's belongs the server's."""
    sentences = [" ".join(part.split()) for part in SENTENCE.split(HEADING.sub("", text, count=1))]
    sentences = [sentence for sentence in sentences if sentence]
    found = next((one for one in sentences if SIGNS.search(one)), sentences[0] if sentences else "")
    server = next((one for one in sentences if one.startswith("Server:")), None)
    return f"{found}. {server}" if server and found.startswith("Client:") else found
