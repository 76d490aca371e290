"""The data of a site: npz files with samples x and labels y, checked against the federation's form."""

from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from kedge.core.errors import DataError
from kedge.data.dataset import Dataset
from kedge.data.federation import Federation
from kedge.data.npz_files import npz_arrays
from kedge.running.federation.agreement import number_kind
from kedge.running.federation.labels import Names, check_count, check_distinct


class DataForm(NamedTuple):
    """The form that a client's data must have."""

    shape: tuple[int, ...]  # of a sample
    dtype: str
    classes: int
    scale: float
    mean: tuple[float, ...]
    std: tuple[float, ...]


class SiteFiles(NamedTuple):
    """The files of a site, and the names of its labels."""

    data: Path | None = None  # None: the experiment's own data of this client
    validation: Path | None = None
    labels: Names = ()  # of --labels; else those of the file


def form_of(data: Federation) -> DataForm:
    """The form of a federation's samples."""
    x = data.pool.x
    dtype = str(x.dtype).removeprefix("torch.")
    return DataForm(tuple(x.shape[1:]), dtype, data.classes, data.scale, data.mean, data.std)


def federation_of_files(files: SiteFiles, form: DataForm) -> Federation:
    """The federation of one client with the samples of its files."""
    assert files.data is not None
    train = samples_of(files.data, form)
    tests = samples_of(files.validation, form) if files.validation else None
    if tests is not None and tests.x.dtype != train.x.dtype:
        raise DataError(
            f"{files.validation}: x is {tests.x.dtype}; in {files.data} it is {train.x.dtype}. Store both "
            "with the same dtype."
        )
    count, more = len(train), len(tests) if tests else 0
    pool = Dataset(torch.cat([train.x, tests.x]), torch.cat([train.y, tests.y])) if tests else train
    return Federation(
        pool=pool,
        clients=(np.arange(count, dtype=np.int64),),
        local_tests=(np.arange(count, count + more, dtype=np.int64),),
        test=None,
        classes=form.classes,
        scale=form.scale,
        mean=form.mean,
        std=form.std,
        dtype=torch.float32,
    )


def samples_of(file: Path, form: DataForm) -> Dataset:
    """The samples of a file; raise if they do not fit the federation."""
    arrays = arrays_of(file)
    try:
        data = Dataset(arrays["x"], arrays["y"])
    except DataError as error:
        raise DataError(f"{file}: {error}") from error
    shape, largest = tuple(data.x.shape[1:]), int(data.y.max())
    if shape != form.shape:
        raise DataError(f"{file}: x has samples of shape {shape}; the federation's have {form.shape}.")
    dtype = str(data.x.dtype).removeprefix("torch.")
    if number_kind(dtype) != number_kind(form.dtype):
        raise DataError(
            f"{file}: x is {dtype}; the federation's samples are {form.dtype}, and multiplied by "
            f"{form.scale:.6g}. Store x as {form.dtype}, in the same range of values."
        )
    if largest >= form.classes:
        raise DataError(
            f"{file}: y has the label {largest} in row {int(data.y.argmax())}; the federation has the labels "
            f"0 to {form.classes - 1}."
        )
    return data


def arrays_of(file: Path) -> dict[str, NDArray[np.generic]]:
    """The arrays of a site's file; raise if it is missing or damaged."""
    if not file.is_file():
        raise DataError(f"{file}: no such file. Give an npz file with the arrays x and y.")
    return npz_arrays(file, ("x", "y"))


def label_names(files: SiteFiles, classes: int) -> Names:
    """The names of a site's labels: of --labels, or of the array label_names in its file; () for none."""
    if files.labels:
        check_count(files.labels, classes, "--labels")
        return files.labels
    if files.data is None:
        return ()
    found = arrays_of(files.data).get("label_names")
    if found is None:
        return ()
    source = f"label_names in {files.data}"
    names = tuple(str(name) for name in np.asarray(found).reshape(-1))
    check_distinct(names, source)
    check_count(names, classes, source)
    return names
