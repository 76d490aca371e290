"""Which leaves of a model: everything, the body, the head."""

from collections.abc import Callable

from kedge.core.model import Model

Selection = Callable[[Model], frozenset[str]]


def everything(model: Model) -> frozenset[str]:
    """All leaves."""
    return frozenset(k for unit in model.units for k in unit) | frozenset(model.extra)


def body(model: Model) -> frozenset[str]:
    """All units but the last."""
    return frozenset(k for unit in model.units[:-1] for k in unit)


def head(model: Model) -> frozenset[str]:
    """The last unit."""
    return frozenset(model.units[-1])
