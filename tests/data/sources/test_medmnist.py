import hashlib
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from tests.data import official
from tests.data.official import random_bytes
from tests.data.web_server import served

from kedge.core.errors import DataError
from kedge.data.datasets import load
from kedge.data.sources import medmnist

PARTS = {
    part: (random_bytes(n, 28, 28, seed=n), random_bytes(n, seed=n + 1) % 11)
    for part, n in (("train", 9), ("val", 5), ("test", 4))
}
NAMES = ("organamnist", "organcmnist", "organsmnist")


@pytest.fixture(autouse=True)
def no_data_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("KEDGE_DATA", raising=False)


def stored(folder: Path, name: str = "organamnist", content: bytes | None = None) -> Path:
    (folder / f"{name}.npz").write_bytes(content or official.medmnist(**PARTS))
    return folder / f"{name}.npz"


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("form", ["file", "folder", "KEDGE_DATA"])
def test_train_and_test_are_the_official_parts(
    name: str, form: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = stored(tmp_path, name)
    if form == "KEDGE_DATA":
        monkeypatch.setenv("KEDGE_DATA", str(tmp_path))
    source = load(name, path={"file": file, "folder": tmp_path}.get(form), verify=False)
    np.testing.assert_array_equal(source.train.x[:, 0], PARTS["train"][0])
    np.testing.assert_array_equal(source.train.y, PARTS["train"][1])
    np.testing.assert_array_equal(source.test.x[:, 0], PARTS["test"][0])
    np.testing.assert_array_equal(source.test.y, PARTS["test"][1])
    assert (source.name, source.classes, source.mean, source.std) == (name, 11, (0.5,), (0.5,))


def test_validation_images_join_the_training_part_on_request(tmp_path: Path) -> None:
    source = load("organamnist", path=stored(tmp_path), validation="train", verify=False)
    both = [np.concatenate([PARTS["train"][k], PARTS["val"][k]]) for k in (0, 1)]
    np.testing.assert_array_equal(source.train.x[:, 0], both[0])
    np.testing.assert_array_equal(source.train.y, both[1])
    assert len(source.test) == 4


def test_the_npz_is_fetched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    content = stored(tmp_path, "organsmnist").read_bytes()
    with served({"files/organsmnist.npz": content}) as site:
        small = replace(
            medmnist.ARCHIVES["organsmnist"],
            addresses=(site.url("files/organsmnist.npz?download=1"),),
            checksum=f"md5:{hashlib.md5(content).hexdigest()}",
        )
        monkeypatch.setitem(medmnist.ARCHIVES, "organsmnist", small)
        np.testing.assert_array_equal(load("organsmnist").train.x[:, 0], PARTS["train"][0])
    assert len(load("organsmnist").test) == 4


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (
            official.medmnist(train=PARTS["train"], val=PARTS["val"]),
            r"lacks test_images, test_labels; it holds",
        ),
        (official.medmnist(**PARTS)[:-50], r"damaged, or not an npz"),
        (
            official.medmnist(**PARTS | {"test": (random_bytes(4, 28, 28), random_bytes(3))}),
            r"test has images uint8 of shape",
        ),
        (
            official.medmnist(**PARTS | {"test": (random_bytes(4, 28), random_bytes(4))}),
            r"shape \(4, 28\) and labels",
        ),
        (
            official.medmnist(**PARTS | {"test": (random_bytes(1, 2, 2), np.array([11]))}),
            r"train samples are",
        ),
        (
            official.medmnist(**PARTS | {"test": (random_bytes(1, 28, 28), np.array([11]))}),
            r"label 11 in row 0 of test",
        ),
    ],
)
def test_a_damaged_file_is_named(content: bytes, reason: str, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=reason):
        load("organamnist", path=stored(tmp_path, content=content), verify=False)


def test_a_folder_without_the_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"organcmnist: .* holds no organcmnist\.npz; put it there"):
        load("organcmnist", path=tmp_path, verify=False)
