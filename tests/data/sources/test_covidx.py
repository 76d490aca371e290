from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from tests.data import official
from tests.data.official import random_bytes

from kedge.core.errors import DataError, RequestError
from kedge.data.datasets import load

TRAIN = [
    "3 SARS-10.1148rg.242035193-g04mr34g0-Fig8a-day0.jpeg pneumonia cohen",
    "419639-003251 MIDRC-RICORD-1C-419639-003251-46647-0.png COVID-19 ricord",
    "419639-003251 COVID-19 (12).png COVID-19 sirm",
    "47c78742 47c78742.png normal rsna",
]
TEST = ["9 a.png normal rsna", "8 b.png COVID-19 ricord"]
SHOTS = {
    "SARS-10.1148rg.242035193-g04mr34g0-Fig8a-day0.jpeg": random_bytes(20, 30, seed=1),
    "MIDRC-RICORD-1C-419639-003251-46647-0.png": random_bytes(64, 64, seed=2),
    "COVID-19 (12).png": random_bytes(90, 70, 3, seed=3),
    "47c78742.png": random_bytes(10, 12, seed=4),
}
HELD = {"a.png": random_bytes(64, 64, seed=5), "b.png": random_bytes(64, 64, seed=6)}


@pytest.fixture(autouse=True)
def no_data_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("KEDGE_DATA", raising=False)


def files(train: list[str] = TRAIN, test: list[str] = TEST, name: str = "") -> dict[str, bytes]:
    return official.covidx("train", train, SHOTS, name) | official.covidx("test", test, HELD, name)


@pytest.mark.parametrize("form", ["folder", "zip", "cache"])
@pytest.mark.parametrize("name", ["", "_split", "_COVIDx_CXR-3A"])
def test_lists_and_images_make_a_dataset(form: str, name: str, tmp_path: Path, cache: Path) -> None:
    path: Path | None = None
    if form == "zip":
        path = official.zipped(tmp_path / "a.zip", files(name=name))
    else:
        folder = official.unpacked(
            tmp_path / "out" if form == "folder" else cache / "covidx", files(name=name)
        )
        path = folder if form == "folder" else None
    source = load("covidx", path=path)
    assert source.train.x.shape == (4, 1, 64, 64)
    assert (source.train.y.tolist(), source.test.y.tolist()) == ([1, 2, 2, 0], [0, 2])
    np.testing.assert_array_equal(source.train.x[1, 0], SHOTS["MIDRC-RICORD-1C-419639-003251-46647-0.png"])
    np.testing.assert_array_equal(source.test.x[:, 0], np.stack([HELD["a.png"], HELD["b.png"]]))
    assert source.keys["patient"].tolist() == ["3", "419639-003251", "419639-003251", "47c78742"]
    assert source.keys["source"].tolist() == ["cohen", "ricord", "sirm", "rsna"]
    assert (source.classes, source.mean, source.std) == (3, (0.5,), (0.5,))


def test_images_are_resized_to_gray_squares(tmp_path: Path) -> None:
    path = official.unpacked(tmp_path, files())
    source = load("covidx", path=path, size=8)
    assert source.train.x.shape == (4, 1, 8, 8)
    with Image.open(path / "train/COVID-19 (12).png") as image:
        expected = image.convert("L").resize((8, 8), Image.Resampling.BILINEAR)
    np.testing.assert_array_equal(source.train.x[2, 0], np.asarray(expected))
    with pytest.raises(RequestError, match=r"covidx\(size=0\): need a whole number of at least 1"):
        load("covidx", path=path, size=0)


def test_lists_of_three_columns_have_no_source(tmp_path: Path) -> None:
    short = [line.rpartition(" ")[0] for line in TRAIN]
    source = load("covidx", path=official.unpacked(tmp_path, files(short)))
    assert source.train.y.tolist() == [1, 2, 2, 0]
    assert list(source.keys) == ["patient"]


def test_images_without_a_label_are_left_out_and_counted(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = load("covidx", path=official.unpacked(tmp_path, files(TRAIN[:3])))
    assert source.train.y.tolist() == [1, 2, 2]
    assert "covidx: 1 images of train/ are not in its list and are left out" in capsys.readouterr().err


def test_several_lists_are_told_apart_by_name(tmp_path: Path) -> None:
    official.unpacked(tmp_path, files(name="_COVIDx5"))
    official.unpacked(tmp_path, files(TRAIN[:2], name="_COVIDx8A"))
    with pytest.raises(
        DataError, match=r"several lists of labels for train \(train_COVIDx5\.txt, train_COVIDx8A"
    ):
        load("covidx", path=tmp_path)
    assert len(load("covidx", path=tmp_path, labels="COVIDx8A").train) == 2
    assert len(load("covidx", path=tmp_path, labels="COVIDx5").train) == 4
    with pytest.raises(DataError, match=r"lacks train_COVIDx9\.txt"):
        load("covidx", path=tmp_path, labels="COVIDx9")


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"test.txt": None}, r"no list of labels for test \(test\*\.txt\)"),
        ({"test/b.png": None}, r"test/ lacks 1 of the 2 images in its list, such as b\.png"),
        ({"test.txt": b"9 ../train/47c78742.png normal rsna"}, r"test/ lacks 1 of the 1 .*\.\./train"),
        ({"test.txt": b"9 a.png positive rsna"}, r"test\.txt, line 1: .* one of normal, pneumonia, COVID-19"),
        (
            {"test.txt": b"9 a.png normal rsna\na.png normal"},
            r"test\.txt, line 2: 'a\.png normal'; need patient",
        ),
        ({"test.txt": b""}, r"covidx, test: no images"),
        ({"test/b.png": b"no image"}, r"test/b\.png is no image, or damaged"),
    ],
)
def test_what_does_not_fit_is_named(changes: dict[str, bytes | None], reason: str, tmp_path: Path) -> None:
    kept = {name: content for name, content in {**files(), **changes}.items() if content is not None}
    with pytest.raises(DataError, match=reason):
        load("covidx", path=official.unpacked(tmp_path, kept))


def test_without_images_the_message_says_how_to_assemble_them(cache: Path) -> None:
    with pytest.raises(DataError) as caught:
        load("covidx")
    assert "COVID-Net/blob/master/docs/COVIDx.md" in str(caught.value)
    assert f"or put these into {cache}/covidx" in str(caught.value)
