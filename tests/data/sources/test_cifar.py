import hashlib
import os
import pickle
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from tests.data import official
from tests.data.official import random_bytes
from tests.data.web_server import served

from kedge.core.errors import DataError
from kedge.data.datasets import load
from kedge.data.sources import cifar

real = pytest.mark.skipif(not os.environ.get("KEDGE_DATA"), reason="KEDGE_DATA names no folder of real data")
TRAIN = (random_bytes(23, 3, 32, 32), random_bytes(23, seed=1) % 10)
TEST = (random_bytes(4, 3, 32, 32, seed=2), random_bytes(4, seed=3) % 10)


@pytest.fixture(autouse=True)
def no_data_folder(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.node.get_closest_marker("data") is None:
        monkeypatch.delenv("KEDGE_DATA", raising=False)


def cifar_archive(folder: Path, name: str = "cifar10") -> Path:
    contents = official.cifar10(TRAIN, TEST) if name == "cifar10" else official.cifar100(TRAIN, TEST)
    return official.tarred(folder / cifar.ARCHIVES[name].file, contents)


@pytest.mark.parametrize("name", ["cifar10", "cifar100"])
@pytest.mark.parametrize("form", ["archive", "folder of the archive", "unpacked", "unpacked inside"])
def test_batches_are_read_in_their_order_however_they_are_packed(
    name: str, form: str, tmp_path: Path
) -> None:
    file = cifar_archive(tmp_path, name)
    path = {"archive": file, "folder of the archive": tmp_path}.get(form, tmp_path / "out")
    if "unpacked" in form:
        contents = official.cifar10(TRAIN, TEST) if name == "cifar10" else official.cifar100(TRAIN, TEST)
        official.unpacked(path, contents)
        path = path if form == "unpacked" else next(path.iterdir())
    source = load(name, path=path, verify=False)
    np.testing.assert_array_equal(source.train.x, TRAIN[0])
    np.testing.assert_array_equal(source.train.y, TRAIN[1])
    np.testing.assert_array_equal(source.test.x, TEST[0])
    np.testing.assert_array_equal(source.test.y, TEST[1])
    assert (source.name, source.classes, source.scale) == (name, 10 if name == "cifar10" else 100, 1 / 255)
    means = {"cifar10": (0.491, 0.482, 0.447), "cifar100": (0.5071, 0.4867, 0.4408)}
    deviations = {"cifar10": (0.247, 0.243, 0.262), "cifar100": (0.2675, 0.2565, 0.2761)}
    assert (source.mean, source.std) == (means[name], deviations[name])


def test_the_archive_is_fetched_and_then_read_from_the_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    content = cifar_archive(tmp_path).read_bytes()
    with served({"cifar-10-python.tar.gz": content}) as site:
        site.cuts = [len(content) // 2]
        small = replace(
            cifar.ARCHIVES["cifar10"],
            addresses=(site.url("cifar-10-python.tar.gz"),),
            checksum=f"md5:{hashlib.md5(content).hexdigest()}",
            size=len(content),
        )
        monkeypatch.setitem(cifar.ARCHIVES, "cifar10", small)
        source = load("cifar10")
        np.testing.assert_array_equal(source.train.x, TRAIN[0])
    np.testing.assert_array_equal(load("cifar10").test.x, TEST[0])
    assert len(site.asked) == 2


def test_the_published_checksum_refuses_another_archive(cache: Path) -> None:
    (cache / "cifar10").mkdir(parents=True)
    cifar_archive(cache / "cifar10")
    with pytest.raises(DataError, match=r"cifar-10-python\.tar\.gz: it has [\d,]+ bytes, not 170,498,071"):
        load("cifar10")


def test_offline_the_message_names_file_folder_and_options(cache: Path) -> None:
    with pytest.raises(DataError) as caught:
        load("cifar100")
    assert f"put cifar-100-python.tar.gz into {cache}/cifar100" in str(caught.value)
    assert "https://www.cs.toronto.edu/~kriz/cifar-100-python.tar.gz" in str(caught.value)


def test_a_missing_batch_is_named(tmp_path: Path) -> None:
    contents = official.cifar10(TRAIN, TEST)
    del contents["cifar-10-batches-py/test_batch"]
    file = official.tarred(tmp_path / "cifar-10-python.tar.gz", contents)
    with pytest.raises(DataError, match=r"cifar-10-python\.tar\.gz: lacks test_batch; it holds cifar-10"):
        load("cifar10", path=file, verify=False)


class Trap:
    def __reduce__(self) -> tuple[object, tuple[str]]:
        return os.mkdir, ("trapped",)


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (pickle.dumps(Trap(), 2), r"it contains \w+\.mkdir"),
        (b"", r"EOFError"),
        (b"no pickle", r"damaged, or no batch of CIFAR"),
        (official.cifar(*TEST)[:-2000], r"damaged, or no batch of CIFAR"),
        (official.pickled({"labels": [1]}), r"KeyError\('data'\)"),
        (
            official.pickled({"data": random_bytes(2, 5), "labels": [1, 2]}),
            r"uint8 of shape \(2, 5\) for 2 labels",
        ),
        (official.pickled({"data": random_bytes(2, 3072), "labels": [1]}), r"shape \(2, 3072\) for 1 labels"),
        (official.pickled({"data": random_bytes(2, 3072), "labels": ["cat", "dog"]}), r"ValueError"),
    ],
)
def test_a_damaged_or_dangerous_batch_is_refused(
    content: bytes, reason: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    contents = {**official.cifar10(TRAIN, TEST), "cifar-10-batches-py/data_batch_3": content}
    official.unpacked(tmp_path / "c", contents)
    with pytest.raises(DataError, match=rf"/c: cifar-10-batches-py/data_batch_3 .*{reason}"):
        load("cifar10", path=tmp_path / "c", verify=False)
    assert not (tmp_path / "trapped").exists()


def test_a_label_beyond_the_classes_is_named(tmp_path: Path) -> None:
    contents = official.cifar10(TRAIN, (TEST[0], np.array([0, 1, 10, 2])))
    with pytest.raises(DataError, match=r"cifar10: label 10 in row 2 of test"):
        load("cifar10", path=official.unpacked(tmp_path, contents), verify=False)


@real
@pytest.mark.data
def test_the_real_images_survive_the_official_format(tmp_path: Path) -> None:
    file = Path(os.environ["KEDGE_DATA"]) / "cifar10.npz"
    if not file.exists():
        pytest.skip("cifar10.npz is not in KEDGE_DATA")
    plain = load("cifar10")
    train, test = ((part.x.numpy(), part.y.numpy()) for part in (plain.train, plain.test))
    source = cifar.cifar10(official.unpacked(tmp_path, official.cifar10(train, test)), verify=False)
    np.testing.assert_array_equal(source.train.x, train[0])
    np.testing.assert_array_equal(source.test.y, test[1])
    assert (source.mean, source.std, source.scale) == (plain.mean, plain.std, plain.scale)
