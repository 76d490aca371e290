import hashlib
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from tests.data import official
from tests.data.official import picture, pixels, random_bytes
from tests.data.web_server import served

from kedge.core.errors import DataError, RequestError
from kedge.data.datasets import load
from kedge.data.sources import tiny_imagenet

CLASSES = ("n01443537", "n02132136", "n09193705")
TRAIN = {
    c: [picture(random_bytes(16, 16, 3, seed=10 * k + j)) for j in range(3)] for k, c in enumerate(CLASSES)
}
TRAIN[CLASSES[1]][2] = picture(random_bytes(16, 16, seed=99))  # some of the images are gray
VAL = [(CLASSES[k], picture(random_bytes(16, 16, 3, seed=50 + k))) for k in (2, 0, 1, 2)]
FILES = official.tiny_imagenet(TRAIN, VAL)
TOP = "tiny-imagenet-200"


@pytest.fixture(autouse=True)
def no_data_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("KEDGE_DATA", raising=False)


@pytest.mark.parametrize("form", ["zip", "folder", "inside"])
def test_images_and_labels_are_those_of_the_folders_and_the_annotations(form: str, tmp_path: Path) -> None:
    """Classes are numbered alphabetically, whatever the order in wnids.txt; here it is the reverse."""
    if form == "zip":
        path = official.zipped(tmp_path / "tiny-imagenet-200.zip", FILES)
    else:
        path = official.unpacked(tmp_path / "out", FILES) / (TOP if form == "inside" else "")
    source = load("tiny-imagenet", path=path, verify=False)
    assert source.train.y.tolist() == [0, 0, 0, 1, 1, 1, 2, 2, 2]
    np.testing.assert_array_equal(source.train.x, [pixels(file) for c in CLASSES for file in TRAIN[c]])
    assert source.test.y.tolist() == [2, 0, 1, 2]
    np.testing.assert_array_equal(source.test.x, [pixels(file) for _, file in VAL])
    assert (source.classes, source.mean, source.std, source.scale) == (3, (0.5,), (0.5,), 1 / 255)


def test_the_zip_is_fetched_and_decoded_once(
    tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    content = official.zipped(tmp_path / "a.zip", FILES).read_bytes()
    with served({"a.zip": content}) as site:
        checksum = f"md5:{hashlib.md5(content).hexdigest()}"
        small = replace(
            tiny_imagenet.ARCHIVE, addresses=(site.url("a.zip"),), checksum=checksum, size=len(content)
        )
        monkeypatch.setattr(tiny_imagenet, "ARCHIVE", small)
        first = load("tiny-imagenet")
    monkeypatch.setattr("kedge.data.sources.tiny_imagenet.decoded_images", None)  # decoding again would fail
    again = load("tiny-imagenet")
    np.testing.assert_array_equal(first.train.x, again.train.x)
    assert len(list((cache / "tiny-imagenet").glob("decoded-*"))) == 1


def test_a_file_that_changes_is_decoded_again(tmp_path: Path) -> None:
    path = official.unpacked(tmp_path / "out", FILES)
    load("tiny-imagenet", path=path)
    other = picture(random_bytes(16, 16, 3, seed=1234))
    (path / TOP / f"train/{CLASSES[0]}/images/{CLASSES[0]}_0.JPEG").write_bytes(other)
    np.testing.assert_array_equal(load("tiny-imagenet", path=path).train.x[0], pixels(other))


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"val/images/val_9.JPEG": VAL[0][1]}, r"has no label for 1 images, such as val_9\.JPEG"),
        ({"val/images/val_2.JPEG": None}, r"val/images lacks 1 images, such as val_2\.JPEG"),
        ({"val/val_annotations.txt": None}, r"lacks val/val_annotations\.txt"),
        ({"wnids.txt": None}, r"lacks wnids\.txt"),
        ({"wnids.txt": b"n1\n" + "\n".join(CLASSES).encode()}, r"images of 1 classes, such as n1\."),
        ({"wnids.txt": CLASSES[0].encode()}, r"n02132136_0\.JPEG is of class n02132136, which wnids\.txt"),
        ({"val/images/val_1.JPEG": picture(random_bytes(8, 16, 3))}, r"val_1\.JPEG has 16×8 pixels, .*16×16"),
        ({"val/images/val_1.JPEG": b"no image"}, r"val/images/val_1\.JPEG is no image, or damaged"),
        ({"val/images/val_1.JPEG": VAL[1][1][:200]}, r"val/images/val_1\.JPEG is no image, or damaged"),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_named(changes: dict[str, bytes | None], reason: str, tmp_path: Path) -> None:
    changed = {**FILES, **{f"{TOP}/{name}": content for name, content in changes.items()}}
    files = {name: content for name, content in changed.items() if content is not None}
    with pytest.raises(DataError, match=reason):
        load("tiny-imagenet", path=official.zipped(tmp_path / "a.zip", files))


def test_training_images_of_another_size_than_the_test_images_are_refused(tmp_path: Path) -> None:
    val = [(wnid, picture(random_bytes(8, 8, 3))) for wnid, _ in VAL]
    path = official.zipped(tmp_path / "a.zip", official.tiny_imagenet(TRAIN, val))
    with pytest.raises(DataError, match=r"train samples are .*\(3, 16, 16\), test samples .*\(3, 8, 8\)"):
        load("tiny-imagenet", path=path)


def test_without_pillow_the_message_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "PIL", None)
    with pytest.raises(RequestError, match=r"needs Pillow: pip install 'kedge\[images\]'"):
        load("tiny-imagenet", path=official.zipped(tmp_path / "a.zip", FILES))
