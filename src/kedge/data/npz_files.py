"""Datasets in plain `.npz` files, one file each.

A file with the name of a built-in dataset is read instead of its official archive.
"""

import os
import tokenize
import zipfile
import zlib
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from kedge.core.errors import DataError, nearest
from kedge.data.dataset import Dataset, Source
from kedge.data.download.archive_members import check_listing

Arrays = dict[str, NDArray[np.generic]]

# Mean and standard deviation per channel, as in the published experiments.
NORMALIZATION: dict[str, tuple[tuple[float, ...], tuple[float, ...]]] = {
    "cifar10": ((0.491, 0.482, 0.447), (0.247, 0.243, 0.262)),
    "cifar100": ((0.5071, 0.4867, 0.4408), (0.2675, 0.2565, 0.2761)),
    "mnist": ((0.1307,), (0.3081,)),
    "fashion-mnist": ((0.2860,), (0.3530,)),
}
NAMES = (
    "digits", "synthetic", "mnist", "fashion-mnist", "cifar10", "cifar100", "tiny-imagenet", "organamnist",
    "organcmnist", "organsmnist", "pamap2", "uci-har", "covidx",
)  # fmt: skip
IMAGE_NORMALIZATION = ((0.5,), (0.5,))
NO_NORMALIZATION = ((0.0,), (1.0,))
REQUIRED_ARRAYS = ("x_train", "y_train", "x_test", "y_test")


def dataset_from_folder(name: str, path: str | os.PathLike[str] | None = None) -> Source:
    """The dataset in `<path or $KEDGE_DATA>/<name>.npz`: x_train, y_train, x_test, y_test.

    uint8 images [n, h, w] or channel-last [n, h, w, 1 or 3] become channel-first; all other arrays are read
    unchanged. Further arrays `<key>_train` and `<key>_test` of one entry per sample become keys. x is divided
    by `scale`, and the number of `label_names` is the number of classes.
    """
    return dataset_from_npz(name, _file(name, path))


def dataset_from_npz(name: str, file: Path) -> Source:
    """The dataset in an npz file."""
    arrays = npz_arrays(file, REQUIRED_ARRAYS)
    if "scale" in arrays and not (arrays["scale"].size == 1 and float(arrays["scale"].item()) > 0):
        raise DataError(f"{file}: scale is {arrays['scale']}; need one number > 0, by which x is divided.")
    try:
        train = Dataset(_channel_first(arrays["x_train"]), arrays["y_train"])
    except DataError as error:
        raise DataError(f"{file}, train part: {error}") from error
    try:
        test = Dataset(_channel_first(arrays["x_test"]), arrays["y_test"])
    except DataError as error:
        raise DataError(f"{file}, test part: {error}") from error
    mean, std = (
        NORMALIZATION.get(name, IMAGE_NORMALIZATION) if train.x.dtype == torch.uint8 else NO_NORMALIZATION
    )
    names = arrays.get("label_names")
    classes = int(max(train.y.max(), test.y.max())) + 1 if names is None else names.size
    keys, test_keys = _keys(arrays, "_train", len(train)), _keys(arrays, "_test", len(test))
    try:
        return Source(name, train, test, classes, mean, std, _scale(arrays), keys, test_keys)
    except DataError as error:
        raise DataError(f"{file}: {error}") from error


def stored_label_names(name: str, path: str | os.PathLike[str] | None = None) -> tuple[str, ...]:
    """The `label_names` in the npz file of a dataset; () if the dataset has no npz file or no names."""
    file = find_override(name, path) or (None if name in NAMES else _file(name, path))
    found = npz_arrays(file, ()).get("label_names") if file else None
    return () if found is None else tuple(str(label) for label in found.reshape(-1))


def _keys(arrays: Arrays, part: str, samples: int) -> Arrays:
    """The keys of a part ("_train" or "_test"): all further arrays with one entry per sample."""
    return {
        key.removesuffix(part): values
        for key, values in arrays.items()
        if key.endswith(part) and key not in REQUIRED_ARRAYS and values.shape == (samples,)
    }


def find_override(name: str, path: str | os.PathLike[str] | None = None) -> Path | None:
    """The npz file at `path` or in $KEDGE_DATA of a built-in dataset; `-` may be `_` in its name."""
    folder_or_file = os.environ.get("KEDGE_DATA") if path is None else path
    if not folder_or_file:
        return None
    location = Path(folder_or_file).expanduser()
    spellings = (name, name.replace("-", "_"))
    files = (
        [location] if location.suffix == ".npz" else [location / f"{spelling}.npz" for spelling in spellings]
    )
    return next((file for file in files if file.is_file() and not _is_medmnist(file)), None)


def available_datasets() -> list[str]:
    """The names of the datasets in $KEDGE_DATA."""
    folder = os.environ.get("KEDGE_DATA")
    return sorted(file.stem for file in Path(folder).glob("*.npz")) if folder else []


def _file(name: str, path: str | os.PathLike[str] | None) -> Path:
    """The dataset's file; if it is missing, raise DataError with the path where kedge expects it."""
    folder = os.environ.get("KEDGE_DATA") if path is None else path
    if not folder:
        raise DataError(
            f"dataset '{name}' is not built in ({', '.join(NAMES)}), and no data folder is given. Put "
            f"{name}.npz into a folder and name it by the environment variable KEDGE_DATA or the option path."
            f"{nearest(name, NAMES)}"
        )
    file = Path(folder) / f"{name}.npz"
    if file.is_file() and Path(name).name == name:
        return file
    present = sorted(other.stem for other in Path(folder).glob("*.npz"))
    contents = (
        f"the folder holds {', '.join(present) or 'no npz file'}"
        if Path(folder).is_dir()
        else "no such folder"
    )
    raise DataError(
        f"dataset '{name}': {file} is missing ({contents}). "
        f"Put an npz with {', '.join(REQUIRED_ARRAYS)} there."
        f"{nearest(name, [*present, *NAMES])}"
    )


def npz_arrays(file: Path, required: tuple[str, ...]) -> Arrays:
    """All arrays of an npz; raise if a required one is missing."""
    try:
        with zipfile.ZipFile(file) as archive:
            check_listing(archive)
            contents = {name.removesuffix(".npy"): _array(archive, name) for name in archive.namelist()}
        arrays: Arrays = {key: array for key, array in contents.items() if array is not None}
    except (
        ValueError, OSError, EOFError, AttributeError, TypeError, zipfile.BadZipFile, zlib.error,
        NotImplementedError, RuntimeError,  # zipfile: unknown compression, passwords
        tokenize.TokenError,  # numpy: an unreadable header
    ) as error:  # fmt: skip
        raise DataError(
            f"{file}: damaged, or not an npz of plain arrays ({error}); put a whole copy there."
        ) from error
    if missing := [key for key in required if key not in arrays]:
        raise DataError(f"{file}: lacks {', '.join(missing)}; it holds {', '.join(arrays) or 'nothing'}.")
    return arrays


def _array(archive: zipfile.ZipFile, name: str) -> NDArray[np.generic] | None:
    """One array of an npz, or None if `name` is not an array.

    zipfile compares the checksum only when the last byte has been read.
    """
    with archive.open(name) as stream:
        if not name.endswith(".npy"):
            stream.read()
            return None
        array: NDArray[np.generic] = np.lib.format.read_array(stream, allow_pickle=False)
        if rest := len(stream.read()):
            raise ValueError(f"{name} has {rest} bytes more than its array")
    return array


def _is_medmnist(file: Path) -> bool:
    """Whether an npz has the official format of MedMNIST, which has its own loader."""
    if not zipfile.is_zipfile(file):
        return False
    with zipfile.ZipFile(file) as arrays:
        return "train_images.npy" in arrays.namelist()


def _scale(arrays: Arrays) -> float:
    if "scale" in arrays:
        return 1 / float(arrays["scale"].item())
    return 1 / 255 if arrays["x_train"].dtype == np.uint8 else 1.0


def _channel_first(x: NDArray[np.generic]) -> NDArray[np.generic]:
    if x.dtype != np.uint8 or x.ndim not in (3, 4):
        return x
    if x.ndim == 3:
        return x[:, None]
    return np.moveaxis(x, -1, 1) if x.shape[-1] in (1, 3) else x
