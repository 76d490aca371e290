"""kedge: federated learning when clients' data differ."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from kedge.version import __version__ as __version__

if TYPE_CHECKING:  # type checkers and editors see the public names without loading them
    from kedge.algorithms import *  # noqa: F403
    from kedge.exports import *  # noqa: F403


def __getattr__(name: str) -> Any:
    """Load the public names, and PyTorch with them, when one is first used."""
    if name != "__all__" and name.startswith("__"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    public = import_module("kedge.exports").public_names()
    if name in globals():  # a submodule, such as kedge.algorithms
        return globals()[name]
    public["__all__"] = list(public)
    if name not in public:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    globals()[name] = public[name]
    return globals()[name]


def __dir__() -> list[str]:
    """Public names and loaded submodules."""
    return sorted({*globals(), *import_module("kedge.exports").public_names()})
