"""Decoded arrays, stored in the cache folder and memory-mapped on later use."""

import hashlib
import os
import shutil
import tempfile
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from kedge.core.errors import DataError
from kedge.data.download.cache import cache_folder, locked, writable_folder

Arrays = dict[str, NDArray[np.generic]]


def cached_arrays(dataset: str, key: object, decode: Callable[[], Arrays]) -> Arrays:
    """The result of `decode`, computed once for each `key`: the inputs and options of the decoding.

    The arrays are renamed into the cache folder together. A second process waits for the first.
    """
    name = hashlib.sha256(repr(key).encode()).hexdigest()[:16]
    folder = cache_folder() / dataset / f"decoded-{name}"
    if not folder.is_dir():
        with writable_folder(folder.parent), locked(folder.parent / f".{folder.name}.lock"):
            if not folder.is_dir():
                arrays = decode()
                temporary = tempfile.mkdtemp(prefix=f".{folder.name}.", dir=folder.parent)
                try:
                    for name, values in arrays.items():
                        np.save(f"{temporary}/{name}.npy", values, allow_pickle=False)
                    os.chmod(temporary, 0o755)
                    os.rename(temporary, folder)
                except BaseException:
                    shutil.rmtree(temporary, ignore_errors=True)
                    raise
    try:
        # Mode "c" is copy-on-write: a change to an array never reaches the file.
        return {file.stem: np.load(file, mmap_mode="c") for file in sorted(folder.glob("*.npy"))}
    except (OSError, ValueError) as error:
        raise DataError(f"{folder}: damaged ({error}); delete it, and it is decoded again.") from error
