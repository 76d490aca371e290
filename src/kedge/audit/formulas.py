"""A method's formula in one line, taken from the docstring of its module."""

import inspect
import re
import sys
from collections.abc import Callable, Mapping
from typing import Any

from kedge.algorithms import METHOD_FACTORIES, SCHEDULE_FACTORIES

FACTORIES: Mapping[str, Callable[..., Any]] = {**SCHEDULE_FACTORIES, **METHOD_FACTORIES}
HEADING = re.compile(r"[\w→-]+ \([^()]*\b\d{4}\)[:,]\s*")  # "FedProx (Li et al., 2020): "
SENTENCE_END = re.compile(r"\.(?:\s+|$)")
SEPARATOR = " — "  # between the formula of a schedule and the formula of the method under it
SIGNS = re.compile(r"[←∇‖⟨⌈Σ√·]")  # without = and +, which prose has too
FORMULAS_OF_MEASUREMENTS = {
    "drift": "Σ_k ‖Δ_k‖² / ‖Σ_k Δ_k‖²; cos(Δ_k^T, Δ_k^t)",
    "features": "Ω[m, n, f] = 1 where sample n has feature f of model m; equal features have |ρ| > γ",
    "theory": "r = (m − 1 + (1 − g·η·(∂f/∂n)²)^s·cos²θ)/m, n*·v* = 1",
    "cost": "Σ f_l + Σ_{l ∈ T} f_l + Σ_{l > min T} f_l multiply-adds; the layers T train",
}


def formula(method: str) -> str:
    """The formulas of the parts of `method`, such as `fedbug+feddyn`; empty if no part has one."""
    if method in FORMULAS_OF_MEASUREMENTS:
        return FORMULAS_OF_MEASUREMENTS[method]
    names = [part.partition("(")[0] for part in method.split("+")]
    return SEPARATOR.join(formula_of_factory(FACTORIES[name]) for name in names if name in FACTORIES)


def formula_of_factory(factory: Callable[..., Any]) -> str:
    """The formula in the docstring of the factory's module, or of the factory if others share its module."""
    factory_text, module_text = inspect.getdoc(factory), inspect.getdoc(sys.modules[factory.__module__])
    is_only = [other.__module__ for other in FACTORIES.values()].count(factory.__module__) < 2
    return first_formula((is_only and module_text) or factory_text or "")


def first_formula(text: str) -> str:
    """The first sentence with a mathematical sign, or else the first sentence.

    A sentence that starts with "Client:" is followed by the sentence that starts with "Server:".
    """
    sentences = [" ".join(part.split()) for part in SENTENCE_END.split(HEADING.sub("", text, count=1))]
    sentences = [sentence for sentence in sentences if sentence]
    fallback = sentences[0] if sentences else ""
    found = next((sentence for sentence in sentences if SIGNS.search(sentence)), fallback)
    server = next((sentence for sentence in sentences if sentence.startswith("Server:")), None)
    return f"{found}. {server}" if server and found.startswith("Client:") else found
