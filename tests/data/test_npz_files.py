import os
from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from kedge.core.errors import DataError
from kedge.data.datasets import load
from kedge.data.npz_files import dataset_from_folder

Arrays = dict[str, NDArray[np.generic]]
real = pytest.mark.skipif(not os.environ.get("KEDGE_DATA"), reason="KEDGE_DATA names no folder of real data")


def images(**changes: NDArray[np.generic]) -> Arrays:
    return {
        "x_train": np.arange(6 * 4 * 5 * 3, dtype=np.uint8).reshape(6, 4, 5, 3),
        "y_train": np.array([0, 1, 2, 0, 1, 2], dtype=np.uint8),
        "x_test": np.zeros((2, 4, 5, 3), dtype=np.uint8),
        "y_test": np.array([0, 2], dtype=np.uint8),
        **changes,
    }


def stored(path: Path, name: str, arrays: Arrays) -> Path:
    np.savez(path / f"{name}.npz", **arrays)  # type: ignore[arg-type]  # the stub takes **kwds for allow_pickle
    return path


def test_a_folder_of_images_becomes_channel_first(tmp_path: Path) -> None:
    arrays = images(site_train=np.arange(6), other_train=np.arange(2), label_names=np.array(list("abcd")))
    source = load("mine", path=stored(tmp_path, "mine", arrays))
    assert source.train.x.shape == (6, 3, 4, 5)
    np.testing.assert_array_equal(source.train.x.numpy(), np.moveaxis(arrays["x_train"], -1, 1))
    assert (source.classes, source.mean, source.std, source.scale) == (4, (0.5,), (0.5,), 1 / 255)
    assert {key: values.tolist() for key, values in source.keys.items()} == {"site": [0, 1, 2, 3, 4, 5]}


def test_known_datasets_have_the_published_mean_and_deviation(tmp_path: Path) -> None:
    source = dataset_from_folder("cifar10", stored(tmp_path, "cifar10", images()))
    assert source.mean == (0.491, 0.482, 0.447)
    assert source.std == (0.247, 0.243, 0.262)
    assert source.classes == 3


def test_gray_images_gain_a_channel(tmp_path: Path) -> None:
    gray = images(x_train=np.zeros((6, 4, 5), dtype=np.uint8), x_test=np.zeros((2, 4, 5), dtype=np.uint8))
    assert dataset_from_folder("gray", stored(tmp_path, "gray", gray)).train.x.shape == (6, 1, 4, 5)


def test_signals_keep_their_axes_and_scale(tmp_path: Path) -> None:
    signals = images(
        x_train=np.ones((6, 9, 3), dtype=np.int16),
        x_test=np.ones((2, 9, 3), dtype=np.int16),
        scale=np.array([2048]),
    )
    source = dataset_from_folder("signals", stored(tmp_path, "signals", signals))
    assert source.train.x.shape == (6, 9, 3)
    assert source.train.x.dtype == torch.int16
    assert (source.scale, source.mean, source.std) == (1 / 2048, (0.0,), (1.0,))


def test_the_folder_is_named_by_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KEDGE_DATA", str(stored(tmp_path, "mine", images())))
    assert load("mine").name == "mine"


def test_without_a_folder_the_message_says_what_to_set(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("KEDGE_DATA", raising=False)
    with pytest.raises(DataError, match=r"Put digit\.npz into .*KEDGE_DATA.* Did you mean 'digits'\?"):
        load("digit")


def test_a_missing_file_is_named_with_what_is_there(tmp_path: Path) -> None:
    stored(tmp_path, "cifar10", images())
    with pytest.raises(
        DataError, match=r"cifar_10\.npz is missing \(the folder holds cifar10\)\. .*'cifar10'\?"
    ):
        dataset_from_folder("cifar_10", tmp_path)
    with pytest.raises(DataError, match=r"is missing \(no such folder\)"):
        dataset_from_folder("cifar10", tmp_path / "nowhere")
    with pytest.raises(DataError, match="is missing"):
        dataset_from_folder("../cifar10", tmp_path / "..")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"y_train": np.array([0, 1])}, r"mine\.npz, train part: x has shape \(6, 3, 4, 5\) and y \(2,\)"),
        ({"x_test": np.full((2, 4), np.nan)}, r"mine\.npz, test part: x is NaN or infinite in row 0"),
        ({"y_test": np.array([0, -1])}, r"mine\.npz, test part: y is -1 in row 1"),
        ({"x_test": np.zeros((2, 4))}, r"mine\.npz: mine: train samples are torch\.uint8 \(3, 4, 5\)"),
        ({"label_names": np.array(["a", "b"])}, r"mine\.npz: mine: label 2 in row 2 of train"),
        ({"scale": np.array([0])}, r"mine\.npz: scale is \[0\]; need one number > 0"),
        ({"site_train": np.array([{}], dtype=object)}, r"mine\.npz: damaged, or not an npz of plain arrays"),
    ],
)
def test_a_damaged_file_is_named(changes: Arrays, message: str, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=message):
        dataset_from_folder("mine", stored(tmp_path, "mine", images(**changes)))


def test_a_file_that_lacks_arrays_is_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"half\.npz: lacks x_test, y_test; it holds x_train, y_train"):
        dataset_from_folder(
            "half", stored(tmp_path, "half", {k: v for k, v in images().items() if "train" in k})
        )


@pytest.mark.parametrize("keep", [0, 10, 300, -40])
def test_a_file_cut_short_is_named(keep: int, tmp_path: Path) -> None:
    file = stored(tmp_path, "short", images()) / "short.npz"
    file.write_bytes(file.read_bytes()[:keep])
    with pytest.raises(DataError, match=r"short\.npz: damaged, or not an npz"):
        dataset_from_folder("short", tmp_path)


def test_a_file_with_flipped_bytes_is_named(tmp_path: Path) -> None:
    file = stored(tmp_path, "flipped", images()) / "flipped.npz"
    whole = bytearray(file.read_bytes())
    whole[250] ^= 0xFF
    file.write_bytes(bytes(whole))
    with pytest.raises(DataError, match=r"flipped\.npz: damaged"):
        dataset_from_folder("flipped", tmp_path)


def test_a_plain_array_is_no_dataset(tmp_path: Path) -> None:
    np.save(tmp_path / "array.npy", np.zeros(3))
    (tmp_path / "array.npy").rename(tmp_path / "array.npz")
    with pytest.raises(DataError, match=r"array\.npz: damaged, or not an npz"):
        dataset_from_folder("array", tmp_path)


@real
@pytest.mark.data
@pytest.mark.parametrize(
    ("name", "shape", "train", "test", "classes"),
    [
        ("mnist", (1, 28, 28), 60_000, 10_000, 10),
        ("cifar10", (3, 32, 32), 50_000, 10_000, 10),
        ("cifar100", (3, 32, 32), 50_000, 10_000, 100),
        ("uci_har", (9, 128), 7352, 2947, 6),
        ("covid_cxr", (1, 96, 96), 1421, 338, 3),
    ],
)
def test_the_real_datasets_load_whole(
    name: str, shape: tuple[int, ...], train: int, test: int, classes: int
) -> None:
    if not (Path(os.environ["KEDGE_DATA"]) / f"{name}.npz").exists():
        pytest.skip(f"{name}.npz is not in KEDGE_DATA")
    source = load(name)
    assert source.train.x.shape == (train, *shape)
    assert (len(source.test), source.classes) == (test, classes)
    assert int(source.train.y.max()) == classes - 1


@real
@pytest.mark.data
def test_real_statistics_are_close_to_the_published_constants() -> None:
    source = load("mnist")
    scaled = source.train.x.double() * source.scale
    assert source.mean == pytest.approx((scaled.mean().item(),), abs=1e-3)
    assert source.std == pytest.approx((scaled.std().item(),), abs=1e-3)
