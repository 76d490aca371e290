"""kedge: federated learning when clients' data differ."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from kedge.version import __version__ as __version__

if TYPE_CHECKING:  # type checkers and editors see the public names without loading them
    from kedge.exports import *  # noqa: F403


def __getattr__(name: str) -> Any:
    """Load the public names, and PyTorch with them, when one is first used."""
    if name != "__all__" and name.startswith("__"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    exports = import_module("kedge.exports")
    if name in globals():  # a submodule, such as kedge.algorithms
        return globals()[name]
    if name not in (*exports.__all__, "__all__"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    globals()[name] = getattr(exports, name)
    return globals()[name]


def __dir__() -> list[str]:
    """Public names and loaded submodules."""
    return sorted({*globals(), *import_module("kedge.exports").__all__})
