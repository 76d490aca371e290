"""The versions a result was made with."""

import torch

from kedge.version import __version__


def versions() -> dict[str, str]:
    """kedge's and torch's."""
    return {"kedge": __version__, "torch": torch.__version__}
