"""Datasets by name: digits and synthetic classes, published datasets, and npz files in the data folder."""

import inspect
from collections.abc import Callable, Sequence
from importlib.resources import files
from math import inf
from typing import Annotated, Any

import numpy as np
from pydantic import Field

from kedge.core.errors import RequestError, nearest
from kedge.core.random import Purpose, normals, permutation
from kedge.core.ranges import Count, checked
from kedge.data.dataset import Dataset, Source
from kedge.data.npz_files import dataset_from_folder, dataset_from_npz, find_override
from kedge.data.sources.cifar import cifar10, cifar100
from kedge.data.sources.covidx import covidx
from kedge.data.sources.medmnist import organamnist, organcmnist, organsmnist
from kedge.data.sources.mnist import fashion_mnist, mnist
from kedge.data.sources.pamap2 import pamap2
from kedge.data.sources.tiny_imagenet import tiny_imagenet
from kedge.data.sources.uci_har import uci_har

__all__ = ["BUILT_IN", "Dataset", "Source", "digits", "load", "synthetic"]

DIGITS = ((0.30580668,), (0.37644229,))  # mean and standard deviation of the 1,438 training images
VALUES_PER_CHUNK = 2**18  # of synthetic data; the result does not depend on it


def digits() -> Source:
    """1,797 real handwritten digits, 8×8 in 17 gray levels; every fifth is a test sample (1,438 / 359).

    Optical Recognition of Handwritten Digits, test part, by E. Alpaydin and C. Kaynak (UCI, CC BY 4.0), the
    copy of scikit-learn.
    """
    with files("kedge.data").joinpath("digits.npz").open("rb") as file, np.load(file) as data:
        x, y = data["x"], data["y"]
    is_test = np.arange(len(y)) % 5 == 4
    train, test = Dataset(x[~is_test], y[~is_test]), Dataset(x[is_test], y[is_test])
    return Source("digits", train, test, 10, *DIGITS, scale=1 / 16)


@checked
def synthetic(
    samples: Annotated[int, Field(ge=5)] = 2000,
    classes: Count = 10,
    features: int | Sequence[int] = (16,),
    noise: Annotated[float, Field(ge=0, lt=inf)] = 1.0,
    seed: int = 0,
) -> Source:
    """Gaussian classes of equal size: standard normal centers plus noise; the last fifth is the test set."""
    shape = (features,) if isinstance(features, int) else tuple(features)
    if classes > samples or not shape or min(shape) < 1:
        raise RequestError(
            f"synthetic(samples={samples}, classes={classes}, features={features}): need classes ≤ samples, "
            "and features ≥ 1 in every axis."
        )
    position, size = np.arange(np.prod(shape)), int(np.prod(shape))
    centers = normals(seed, Purpose.SYNTHETIC, step=0, client=np.arange(classes)[:, None], position=position)
    y = permutation(samples, seed, Purpose.SYNTHETIC, step=2) % classes
    x = np.empty((samples, size), dtype=np.float32)
    for rows in np.array_split(np.arange(samples), 1 + samples * size // VALUES_PER_CHUNK):
        drawn = normals(seed, Purpose.SYNTHETIC, step=1, client=rows[:, None], position=position)
        x[rows] = centers[y[rows]] + noise * drawn
    x, cut = x.reshape(samples, *shape), samples - samples // 5
    return Source("synthetic", Dataset(x[:cut], y[:cut]), Dataset(x[cut:], y[cut:]), classes)


BUILT_IN: dict[str, Callable[..., Source]] = {
    "digits": digits,
    "synthetic": synthetic,
    "mnist": mnist,
    "fashion-mnist": fashion_mnist,
    "cifar10": cifar10,
    "cifar100": cifar100,
    "tiny-imagenet": tiny_imagenet,
    "organamnist": organamnist,
    "organcmnist": organcmnist,
    "organsmnist": organsmnist,
    "pamap2": pamap2,
    "uci-har": uci_har,
    "covidx": covidx,
}


def load(name: str, **options: Any) -> Source:
    """Load the dataset `name`: one of BUILT_IN, or `<name>.npz` in the data folder.

    An npz file with the name of a built-in dataset, at the option `path` or in $KEDGE_DATA, is read instead
    of the official archive.
    """
    build = BUILT_IN.get(name)
    parameters = inspect.signature(build or dataset_from_folder).parameters
    for option in options:
        if option not in parameters or (build is None and option == "name"):
            raise RequestError(
                f"{name} has no option '{option}'; it has {', '.join(parameters) or 'none'}."
                f"{nearest(option, parameters)}"
            )
    if build is None:
        return dataset_from_folder(name, **options)
    file = find_override(name, options.get("path")) if "path" in parameters else None
    if file is None:
        return build(**options)
    unused = [
        k for k, value in options.items() if k not in ("path", "verify") and value != parameters[k].default
    ]
    if unused:
        raise RequestError(
            f"{name} is read from {file} as it is, so {', '.join(unused)} has no effect. Leave it out, or "
            "remove the file (or unset KEDGE_DATA) to read the official archive."
        )
    return dataset_from_npz(name, file)
