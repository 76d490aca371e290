"""OrganAMNIST, OrganCMNIST and OrganSMNIST (MedMNIST v2; Yang et al., 2023): one npz each.

The arrays are train_, val_ and test_images [n, 28, 28] and the same with _labels [n, 1]. Addresses and
checksums are copied from the package medmnist 3.0.2. Larger editions (organamnist_64.npz, …) are read from a
path.
"""

import os
from pathlib import Path
from typing import Literal

import numpy as np

from kedge.core.errors import DataError
from kedge.data.dataset import Dataset, Source
from kedge.data.download.archive import Archive, PathOption, find_archive
from kedge.data.npz_files import IMAGE_NORMALIZATION, Arrays, npz_arrays

Validation = Literal["leave", "train"]
SUMS = {
    "organamnist": "68e3f8846a6bd62f0c9bf841c0d9eacc",
    "organcmnist": "b9ceb9546e10131b32923c5bbeaea2b1",
    "organsmnist": "9ab87b696fb54e2a387ebe992d6ed5f1",
}
ARCHIVES = {
    name: Archive(
        f"{name}.npz", (f"https://zenodo.org/records/10519652/files/{name}.npz?download=1",), f"md5:{md5}"
    )
    for name, md5 in SUMS.items()
}
REQUIRED_ARRAYS = tuple(
    f"{part}_{what}" for part in ("train", "val", "test") for what in ("images", "labels")
)


def organamnist(path: PathOption = None, validation: Validation = "leave", verify: bool = True) -> Source:
    """34,561 / 17,778 axial CT slices of 11 organs, 28×28 gray (about 38 MB).

    `path` is organamnist.npz or its folder; validation = "train" adds the 6,491 validation images;
    verify = false skips the checksum.
    """
    return _source("organamnist", path, validation, verify)


def organcmnist(path: PathOption = None, validation: Validation = "leave", verify: bool = True) -> Source:
    """12,975 / 8,216 coronal CT slices of 11 organs, 28×28 gray (about 15 MB).

    `path` is organcmnist.npz or its folder; validation = "train" adds the 2,392 validation images;
    verify = false skips the checksum.
    """
    return _source("organcmnist", path, validation, verify)


def organsmnist(path: PathOption = None, validation: Validation = "leave", verify: bool = True) -> Source:
    """13,932 / 8,827 sagittal CT slices of 11 organs, 28×28 gray (about 16 MB).

    `path` is organsmnist.npz or its folder; validation = "train" adds the 2,452 validation images;
    verify = false skips the checksum.
    """
    return _source("organsmnist", path, validation, verify)


def _source(name: str, path: PathOption, validation: Validation, verify: bool) -> Source:
    archive = ARCHIVES[name]
    if path is None and (data := os.environ.get("KEDGE_DATA")) and (Path(data) / archive.file).is_file():
        path = Path(data) / archive.file
    file = find_archive(name, archive, path, verify)
    if file.is_dir():
        raise DataError(f"{name}: {file} holds no {archive.file}; put it there, or give its path.")
    arrays = npz_arrays(file, REQUIRED_ARRAYS)
    train = _part(file, arrays, *(("train", "val") if validation == "train" else ("train",)))
    return Source(name, train, _part(file, arrays, "test"), 11, *IMAGE_NORMALIZATION, scale=1 / 255)


def _part(file: Path, arrays: Arrays, *parts: str) -> Dataset:
    for part in parts:
        images, labels = arrays[f"{part}_images"], arrays[f"{part}_labels"]
        if images.dtype != np.uint8 or images.ndim != 3 or labels.shape != (len(images), 1):
            raise DataError(
                f"{file}: {part} has images {images.dtype} of shape {images.shape} and labels of shape "
                f"{labels.shape}; need uint8 [n, h, w] and [n, 1]."
            )
    x = np.concatenate([arrays[f"{part}_images"] for part in parts])
    y = np.concatenate([arrays[f"{part}_labels"] for part in parts])
    try:
        return Dataset(x[:, None], y[:, 0])
    except DataError as error:
        raise DataError(f"{file}, {' and '.join(parts)}: {error}") from error
