"""What torchvision and medmnist know of addresses and checksums, where these extras are installed."""

import contextlib
import importlib
import io
from typing import Any

from kedge.data.download.archive import Archive


def from_torchvision(kind: str, archive: Archive) -> Archive:
    """The archive with the addresses and the checksum of `torchvision.datasets.<kind>`, if it is there."""
    known: Any = getattr(_imported("torchvision.datasets"), kind, None)
    if hasattr(known, "tgz_md5"):  # CIFAR: one archive
        return archive.also((known.url,), f"md5:{known.tgz_md5}")
    sums = dict(getattr(known, "resources", ()))  # MNIST: several files, each on all mirrors
    if archive.file not in sums:
        return archive
    return archive.also(tuple(f"{m}{archive.file}" for m in known.mirrors), f"md5:{sums[archive.file]}")


def from_medmnist(name: str, archive: Archive) -> Archive:
    """The archive with the address and the checksum of `medmnist.INFO[name]`, if it is there."""
    entry = getattr(_imported("medmnist"), "INFO", {}).get(name)
    return archive.also((entry["url"],), f"md5:{entry['MD5']}") if entry else archive


def _imported(name: str) -> Any:
    """The module, or None; one that is broken (built for another torch, say) is as good as absent."""
    with contextlib.redirect_stdout(io.StringIO()):  # medmnist prints when its own extras are absent
        try:
            return importlib.import_module(name)
        except (ImportError, OSError, RuntimeError):
            return None
