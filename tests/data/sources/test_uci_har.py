import hashlib
import os
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from tests.data import official
from tests.data.web_server import served

from kedge.core.errors import DataError
from kedge.data.datasets import load
from kedge.data.partitions.partition import Natural
from kedge.data.sources import uci_har

real = pytest.mark.skipif(not os.environ.get("KEDGE_DATA"), reason="KEDGE_DATA names no folder of real data")
DRAW = np.random.default_rng(0)
TRAIN = (DRAW.normal(size=(6, 9, 128)).round(3), np.array([1, 2, 3, 4, 5, 6]), np.array([1, 1, 3, 3, 3, 30]))
TEST = (DRAW.normal(size=(3, 9, 128)).round(3), np.array([6, 5, 5]), np.array([2, 2, 4]))
FILES = official.uci_har("train", *TRAIN) | official.uci_har("test", *TEST)


@pytest.fixture(autouse=True)
def no_data_folder(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.node.get_closest_marker("data") is None:
        monkeypatch.delenv("KEDGE_DATA", raising=False)


def nested(folder: Path) -> Path:
    """UCI's download: a zip in a zip, with the files that macOS adds."""
    extra = {"__MACOSX/UCI HAR Dataset/train/._y_train.txt": b"?", "UCI HAR Dataset/.DS_Store": b"?"}
    inner = official.zipped(folder / "UCI HAR Dataset.zip", FILES | extra)
    return official.zipped(
        folder / uci_har.ARCHIVE.file,
        {"UCI HAR Dataset.zip": inner.read_bytes(), "UCI HAR Dataset.names": b""},
    )


@pytest.mark.parametrize("form", ["UCI's zip", "its folder", "inner zip", "unpacked"])
def test_signals_labels_and_subjects_are_read(form: str, tmp_path: Path) -> None:
    path = {"UCI's zip": nested(tmp_path), "its folder": tmp_path}.get(form, tmp_path / "UCI HAR Dataset.zip")
    if form == "unpacked":
        path = official.unpacked(tmp_path / "out", FILES)
    source = load("uci-har", path=path, verify=False)
    assert source.train.x.dtype == torch.float32
    np.testing.assert_array_equal(source.train.x, TRAIN[0].astype(np.float32))
    np.testing.assert_array_equal(source.test.x, TEST[0].astype(np.float32))
    assert (source.train.y.tolist(), source.test.y.tolist()) == ([0, 1, 2, 3, 4, 5], [5, 4, 4])
    assert (source.classes, source.mean, source.std, source.scale) == (6, (0.0,), (1.0,), 1.0)
    assert source.keys["subject"].tolist() == [1, 1, 3, 3, 3, 30]
    clients = Natural("subject")(source.train.y.numpy(), 0, source.keys["subject"])
    assert [own.tolist() for own in clients] == [[0, 1], [2, 3, 4], [5]]


def test_the_zip_is_fetched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    content = nested(tmp_path).read_bytes()
    with served({uci_har.ARCHIVE.file: content}) as site:
        checksum = f"sha256:{hashlib.sha256(content).hexdigest()}"
        address = site.url(uci_har.ARCHIVE.file)
        small = replace(uci_har.ARCHIVE, addresses=(address,), checksum=checksum, size=len(content))
        monkeypatch.setattr(uci_har, "ARCHIVE", small)
        assert load("uci-har").train.x.shape == (6, 9, 128)


@pytest.mark.parametrize(
    ("name", "content", "reason"),
    [
        ("test/y_test.txt", None, r"lacks y_test\.txt"),
        ("train/Inertial Signals/body_gyro_y_train.txt", None, r"lacks .*/body_gyro_y_train\.txt"),
        ("test/y_test.txt", b"6\n7\n5", r"y_test\.txt has activity 7 in line 2; need 1 to 6"),
        ("test/y_test.txt", b"6\n5", r"body_acc_x_test\.txt has 3 lines of 128 numbers; need 2 of 128"),
        ("train/subject_train.txt", b"1 2\n3 4", r"subject_train\.txt has 2 lines of 2 numbers; need 6 of 1"),
        ("train/y_train.txt", b"1\ntwo", r"y_train\.txt is damaged \(could not convert"),
        ("test/Inertial Signals/total_acc_z_test.txt", b"1 2\n1", r"total_acc_z_test\.txt is damaged"),
        ("test/Inertial Signals/total_acc_z_test.txt", b"nan " * 128 + b"\n" + (b"0 " * 128 + b"\n") * 2,
         r"test part: x is NaN or infinite in row 0"),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_named(name: str, content: bytes | None, reason: str, tmp_path: Path) -> None:
    files = {n: c for n, c in {**FILES, f"UCI HAR Dataset/{name}": content}.items() if c is not None}
    with pytest.raises(DataError, match=reason):
        load("uci-har", path=official.unpacked(tmp_path, files))


@real
@pytest.mark.data
def test_the_real_windows_survive_the_official_format(tmp_path: Path) -> None:
    if not (Path(os.environ["KEDGE_DATA"]) / "uci_har.npz").exists():
        pytest.skip("uci_har.npz is not in KEDGE_DATA")
    plain = load("uci-har")
    assert plain.name == "uci-har"
    assert plain.train.x.shape == (7352, 9, 128)
    assert len(np.unique(plain.keys["subject"])) == 21
    few = slice(0, 400)
    x, y = plain.train.x[few].numpy() * plain.scale, plain.train.y[few].numpy() + 1
    who = plain.keys["subject"][few].astype(np.int64)
    files = official.uci_har("train", x, y, who) | official.uci_har("test", x, y, who)
    source = uci_har.uci_har(official.zipped(tmp_path / "a.zip", files))
    np.testing.assert_allclose(source.train.x, x, rtol=1e-6, atol=1e-9)
    np.testing.assert_array_equal(source.train.y, plain.train.y[few])
