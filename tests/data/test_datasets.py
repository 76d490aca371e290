import inspect
from pathlib import Path

import numpy as np
import pytest
import torch
from tests.data import official

from kedge.config.experiment import factory_table
from kedge.core.errors import DataError, RequestError
from kedge.data.datasets import BUILT_IN, Dataset, Source, digits, load, synthetic
from kedge.data.npz_files import NAMES


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.uint8, torch.int16])
def test_dataset_keeps_the_dtype_of_samples_and_has_int64_labels(dtype: torch.dtype) -> None:
    data = Dataset(torch.zeros(3, 2, dtype=dtype), torch.tensor([0, 1, 1], dtype=torch.uint8))
    assert data.x.dtype == dtype
    assert data.y.dtype == torch.int64
    assert len(data) == 3


def test_dataset_takes_lists_and_arrays_of_any_layout() -> None:
    assert Dataset([[1.0, 2.0], [3.0, 4.0]], [0, 1]).x.tolist() == [[1, 2], [3, 4]]
    readonly = np.broadcast_to(np.arange(3, dtype=">f4"), (2, 3))
    assert Dataset(readonly, np.array([1.0, 0.0])).x.tolist() == [[0, 1, 2], [0, 1, 2]]
    assert Dataset(np.arange(6).reshape(2, 3).T[::-1], [0, 1, 2]).x.is_contiguous()
    assert Dataset(np.full((1, 1), 65535, dtype=np.uint16), [0]).x.item() == 65535


@pytest.mark.parametrize(
    ("x", "y", "message"),
    [
        (np.zeros((3, 2)), [0, 1], r"x has shape \(3, 2\) and y \(2,\); need .* the same n ≥ 1"),
        (np.zeros((0, 2)), [], r"x has shape \(0, 2\)"),
        (np.zeros(3), [0, 1, 2], r"x has shape \(3,\).*A single feature is a column, \[n, 1\]"),
        (np.zeros((2, 2)), [[0], [1]], r"y \(2, 1\)"),
        ([[0.0, 0.0], [0.0, np.nan], [np.inf, 0.0]], [0, 1, 2], r"x is NaN or infinite in row 1; repair"),
        (np.zeros((2, 2)), [0, -3], r"y is -3 in row 1; need class labels 0, 1, 2"),
        (np.zeros((2, 2)), [0.5, 1.0], r"y is 0\.5 in row 0"),
        (np.zeros((2, 2)), [0.0, np.nan], r"y is nan in row 1"),
        (np.zeros((2, 2)), ["cat", "dog"], r"y is not an array of numbers"),
        ([[1.0], [1.0, 2.0]], [0, 1], r"x is not an array of numbers"),
        (np.zeros((1, 1), dtype=complex), [0], r"x is torch\.complex128; need floating point or integers"),
    ],
)
def test_damaged_data_are_refused_by_row(x: list[list[float]], y: list[int], message: str) -> None:
    with pytest.raises(DataError, match=message):
        Dataset(x, y)


def test_source_names_a_label_beyond_the_classes() -> None:
    good, bad = Dataset([[0.0], [0.0]], [0, 1]), Dataset([[0.0], [0.0]], [0, 7])
    with pytest.raises(DataError, match=r"mine: label 7 in row 1 of test, but there are 2 classes"):
        Source("mine", good, bad, 2)


def test_source_refuses_parts_and_statistics_that_do_not_fit() -> None:
    one, two = Dataset([[0.0]], [0]), Dataset([[0.0, 0.0]], [0])
    with pytest.raises(DataError, match=r"train samples are torch\.float64 \(1,\), test samples"):
        Source("mine", one, two, 1)
    with pytest.raises(DataError, match=r"for 2 channels; need one entry per channel or one for all"):
        Source("mine", two, two, 1, mean=(0.0, 0.0, 0.0))


def test_digits_are_the_real_ones_split_by_every_fifth() -> None:
    """The counts per class are those of scikit-learn's load_digits; mean and deviation are recomputed."""
    source = digits()
    assert (len(source.train), len(source.test), source.classes) == (1438, 359, 10)
    assert source.train.x.shape == (1438, 1, 8, 8)
    assert int(source.train.x.max()) == 16
    both = torch.cat([source.train.y, source.test.y])
    assert both.bincount().tolist() == [178, 182, 177, 183, 181, 182, 181, 179, 174, 180]
    scaled = source.train.x.double() * source.scale
    assert source.mean == pytest.approx((scaled.mean().item(),), abs=1e-7)
    assert source.std == pytest.approx((scaled.std(correction=0).item(),), abs=1e-7)


def test_synthetic_classes_are_learnable_balanced_and_repeatable() -> None:
    """The nearest training mean classifies Gaussian classes around separate centers."""
    source = synthetic()
    assert (len(source.train), len(source.test), source.classes) == (1600, 400, 10)
    assert source.train.x.dtype == torch.float32
    both = torch.cat([source.train.y, source.test.y])
    assert both.bincount().tolist() == [200] * 10
    means = torch.stack([source.train.x[source.train.y == k].mean(0) for k in range(10)])
    found = torch.cdist(source.test.x, means).argmin(1)
    assert (found == source.test.y).float().mean() > 0.85
    assert torch.equal(source.train.x, synthetic().train.x)
    assert not torch.equal(source.train.x, synthetic(seed=1).train.x)


def test_synthetic_samples_take_any_shape_and_do_not_depend_on_chunks(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    whole = synthetic(samples=50, classes=3, features=[3, 4, 4])
    assert whole.train.x.shape == (40, 3, 4, 4)
    monkeypatch.setattr("kedge.data.datasets.VALUES_PER_CHUNK", 100)
    assert torch.equal(whole.train.x, synthetic(samples=50, classes=3, features=(3, 4, 4)).train.x)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"samples": 4}, r"synthetic\(samples=4\): need a whole number of at least 5"),
        ({"classes": 0}, r"synthetic\(classes=0\): need a whole number of at least 1"),
        ({"samples": 9}, r"synthetic\(samples=9, classes=10, .*: need classes ≤ samples"),
        ({"features": 0}, "features ≥ 1 in every axis"),
        ({"noise": -1.0}, r"synthetic\(noise=-1\.0\): need a finite noise ≥ 0"),
        ({"noise": float("inf")}, r"synthetic\(noise=inf\): need a finite noise ≥ 0"),
    ],
)
def test_synthetic_refuses_what_it_cannot_make(wrong: dict[str, int], message: str) -> None:
    with pytest.raises(RequestError, match=message):
        load("synthetic", **wrong)


def test_unknown_options_are_refused_with_the_known_ones() -> None:
    with pytest.raises(
        RequestError, match=r"synthetic has no option 'sample'; it has samples, .*'samples'\?"
    ):
        load("synthetic", sample=3)
    with pytest.raises(RequestError, match=r"digits has no option 'path'; it has none"):
        load("digits", path="x")


def test_the_names_in_messages_are_those_there_are() -> None:
    assert tuple(BUILT_IN) == NAMES


@pytest.mark.parametrize("name", NAMES)
def test_every_dataset_has_one_line_and_a_table_of_options(name: str) -> None:
    line, blank, *_ = [*(inspect.getdoc(BUILT_IN[name]) or "").splitlines(), ""]
    assert line.endswith(".")
    assert len(line) <= 100
    assert not blank
    table = factory_table("data", {"name": name})
    assert set(table) >= {"name", *inspect.signature(BUILT_IN[name]).parameters}


def plain(file: Path, images: int = 6) -> Path:
    x = np.arange(images * 12, dtype=np.uint8).reshape(images, 2, 2, 3)
    np.savez(file, x_train=x, y_train=np.arange(images), x_test=x[:1], y_test=np.array([0]))
    return file


@pytest.mark.parametrize(
    ("name", "file"), [("cifar10", "cifar10"), ("uci-har", "uci_har"), ("uci-har", "uci-har")]
)
@pytest.mark.parametrize("form", ["KEDGE_DATA", "folder", "file"])
def test_a_plain_npz_goes_before_the_archive(
    name: str, file: str, form: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain(tmp_path / f"{file}.npz")
    monkeypatch.setenv("KEDGE_DATA", str(tmp_path if form == "KEDGE_DATA" else tmp_path / "nowhere"))
    source = load(name, path={"folder": tmp_path, "file": tmp_path / f"{file}.npz"}.get(form))
    assert source.name == name
    assert source.train.x.shape == (6, 3, 2, 2)
    assert source.mean == ((0.491, 0.482, 0.447) if name == "cifar10" else (0.5,))


def test_options_that_cannot_act_on_a_plain_npz_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KEDGE_DATA", str(tmp_path))
    plain(tmp_path / "pamap2.npz")
    assert len(load("pamap2", path=None, step=100, drop=(0, 5, 12), test=0.2).train) == 6
    with pytest.raises(
        RequestError, match=r"pamap2 is read from .*pamap2\.npz as it is, so step has no effect"
    ):
        load("pamap2", step=50)


def test_the_stand_in_for_covidx_is_taken_by_its_own_name_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KEDGE_DATA", str(tmp_path))
    plain(tmp_path / "covid_cxr.npz")
    assert load("covid_cxr").name == "covid_cxr"
    with pytest.raises(DataError, match="covidx: its images come from collections"):
        load("covidx")


def test_the_path_of_an_archive_goes_before_the_data_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain(tmp_path / "mnist.npz")
    monkeypatch.setenv("KEDGE_DATA", str(tmp_path))
    images, labels = official.random_bytes(3, 28, 28), official.random_bytes(3) % 10
    path = official.unpacked(tmp_path / "idx", official.mnist((images, labels), (images, labels)))
    assert load("mnist", path=path, verify=False).train.x.shape == (3, 1, 28, 28)
    assert load("mnist").train.x.shape == (6, 3, 2, 2)
