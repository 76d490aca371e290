"""What was decoded once: arrays kept in the cache folder, memory-mapped when they are needed again."""

import hashlib
import os
import shutil
import tempfile
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from kedge.core.errors import DataError
from kedge.data.download.archive import cache_folder, locked, writable

Arrays = dict[str, NDArray[np.generic]]


def kept(dataset: str, facts: object, make: Callable[[], Arrays]) -> Arrays:
    """The arrays that `make` gives, made once for these facts: what they are made of, and how.

    They appear in the cache folder all at once; of two processes the second waits for the first.
    """
    key = hashlib.sha256(repr(facts).encode()).hexdigest()[:16]
    folder = cache_folder() / dataset / f"decoded-{key}"
    if not folder.is_dir():
        with writable(folder.parent), locked(folder.parent / f".{folder.name}.lock"):
            if not folder.is_dir():
                arrays = make()
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
        # Mode "c": pages come from the file and are never written back.
        return {file.stem: np.load(file, mmap_mode="c") for file in sorted(folder.glob("*.npy"))}
    except (OSError, ValueError) as error:
        raise DataError(f"{folder}: damaged ({error}); delete it to have it made again.") from error
