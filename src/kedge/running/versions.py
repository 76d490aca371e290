"""The versions of kedge and torch, which are stored with a result."""

import torch

from kedge.version import __version__


def versions() -> dict[str, str]:
    """The versions of kedge and torch by name."""
    return {"kedge": __version__, "torch": torch.__version__}
