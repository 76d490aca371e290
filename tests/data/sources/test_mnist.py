import gzip
import hashlib
import os
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from tests.data import official
from tests.data.official import random_bytes
from tests.data.web_server import served

from kedge.core.errors import DataError
from kedge.data.datasets import load
from kedge.data.sources import mnist

real = pytest.mark.skipif(not os.environ.get("KEDGE_DATA"), reason="KEDGE_DATA names no folder of real data")
TRAIN = (random_bytes(7, 28, 28), random_bytes(7, seed=1) % 10)
TEST = (random_bytes(3, 28, 28, seed=2), random_bytes(3, seed=3) % 10)
FILES = official.mnist(TRAIN, TEST)
NAMES = ("mnist", "fashion-mnist")


@pytest.fixture(autouse=True)
def no_data_folder(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.node.get_closest_marker("data") is None:
        monkeypatch.delenv("KEDGE_DATA", raising=False)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("form", ["gzipped", "plain", "both", "zip"])
def test_idx_files_are_read_however_they_are_packed(name: str, form: str, tmp_path: Path) -> None:
    plain = {f"MNIST/raw/{n.removesuffix('.gz')}": gzip.decompress(c) for n, c in FILES.items()}
    packed = {f"MNIST/raw/{n}": c for n, c in FILES.items()}
    files = {"gzipped": FILES, "plain": plain, "both": {**packed, **plain}, "zip": packed}[form]
    path = official.zipped(tmp_path / "a.zip", files) if form == "zip" else official.unpacked(tmp_path, files)
    source = load(name, path=path, verify=False)
    np.testing.assert_array_equal(source.train.x[:, 0], TRAIN[0])
    np.testing.assert_array_equal(source.train.y, TRAIN[1])
    np.testing.assert_array_equal(source.test.x[:, 0], TEST[0])
    np.testing.assert_array_equal(source.test.y, TEST[1])
    known = {"mnist": ((0.1307,), (0.3081,)), "fashion-mnist": ((0.2860,), (0.3530,))}[name]
    assert (source.name, source.classes, source.mean, source.std) == (name, 10, *known)


@pytest.mark.parametrize("name", NAMES)
def test_the_four_files_are_fetched(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with served(FILES) as site:
        small = tuple(
            replace(
                archive,
                addresses=(site.url(archive.file),),
                checksum=f"md5:{hashlib.md5(FILES[archive.file]).hexdigest()}",
                size=len(FILES[archive.file]),
            )
            for archive in mnist.ARCHIVES[name]
        )
        monkeypatch.setitem(mnist.ARCHIVES, name, small)
        np.testing.assert_array_equal(load(name).train.x[:, 0], TRAIN[0])
        np.testing.assert_array_equal(load(name).test.x[:, 0], TEST[0])
    assert sorted(site.asked) == sorted((file, None) for file in FILES)


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (FILES["t10k-images-idx3-ubyte.gz"][:-9], r"t10k-images-idx3-ubyte\.gz is damaged"),
        (b"no gzip", r"t10k-images-idx3-ubyte\.gz is damaged \(Not a gzipped file"),
        (gzip.compress(b""), r"no idx file of bytes, or not whole: 0 bytes"),
        (gzip.compress(official.idx(TEST[0])[:-1]), r"not whole: 2,367 bytes for the shape \[3, 28, 28\]"),
        (gzip.compress(official.idx(TEST[0]) + b"1"), r"not whole: 2,369 bytes"),
        (gzip.compress(b"\x00\x00\x0d" + official.idx(TEST[0])[3:]), r"no idx file of bytes"),
        (gzip.compress(official.idx(TEST[0][:2])), r"test part: x has shape \(2, 1, 28, 28\) and y \(3,\)"),
        (gzip.compress(official.idx(TEST[1])), r"test part: images of shape \(3,\); need \[n, h, w\]"),
    ],
    ids=["cut", "no gzip", "empty", "short", "long", "of floats", "fewer images", "labels for images"],
)
def test_a_damaged_file_is_named(content: bytes, reason: str, tmp_path: Path) -> None:
    files = {**FILES, "t10k-images-idx3-ubyte.gz": content}
    with pytest.raises(DataError, match=reason):
        load("mnist", path=official.unpacked(tmp_path, files), verify=False)


def test_a_missing_split_is_named(tmp_path: Path) -> None:
    files = {name: content for name, content in FILES.items() if "t10k" not in name}
    with pytest.raises(
        DataError, match=r"lacks t10k-images-idx3-ubyte\.gz or t10k-images-idx3-ubyte; it holds"
    ):
        load("mnist", path=official.unpacked(tmp_path, files), verify=False)


def test_two_datasets_under_one_path_are_told_apart_by_a_narrower_one(tmp_path: Path) -> None:
    for name in ("MNIST", "FashionMNIST"):
        official.unpacked(tmp_path / name, FILES)
    with pytest.raises(DataError, match=r"more than once .* give a path that holds one dataset only"):
        load("mnist", path=tmp_path, verify=False)
    assert len(load("mnist", path=tmp_path / "MNIST", verify=False).train) == 7


@real
@pytest.mark.data
def test_real_images_written_as_idx_are_the_official_files() -> None:
    """The md5 of the four files of MNIST, unzipped, as listed by public loaders."""
    if not (Path(os.environ["KEDGE_DATA"]) / "mnist.npz").exists():
        pytest.skip("mnist.npz is not in KEDGE_DATA")
    sums = {
        "train-images-idx3-ubyte": "6bbc9ace898e44ae57da46a324031adb",
        "train-labels-idx1-ubyte": "a25bea736e30d166cdddb491f175f624",
        "t10k-images-idx3-ubyte": "2646ac647ad5339dbf082846283269ea",
        "t10k-labels-idx1-ubyte": "27ae3e4e09519cfbb04c329615203637",
    }
    source = load("mnist")
    parts = [(part.x[:, 0].numpy(), part.y.numpy().astype(np.uint8)) for part in (source.train, source.test)]
    for name, content in official.mnist(parts[0], parts[1]).items():
        assert hashlib.md5(gzip.decompress(content)).hexdigest() == sums[name.removesuffix(".gz")]
