"""The files of a site: data that do not fit are refused with a sentence."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("flwr")

from kedge.core.errors import DataError, RequestError
from kedge.data.npz_files import stored_label_names
from kedge.running.federation.site_data import DataForm, SiteFiles, federation_of_files, label_names

FORM = DataForm((2, 3), "float32", 4, 1.0, (0.5,), (2.0,))
X, Y = np.arange(30, dtype=np.float32).reshape(5, 2, 3), np.array([0, 1, 2, 3, 0])


def write(folder: Path, name: str, **arrays: Any) -> Path:
    path = folder / f"{name}.npz"
    np.savez(path, **arrays)
    return path


def test_training_and_validation_samples_are_separate_parts_of_one_pool(tmp_path: Path) -> None:
    files = SiteFiles(write(tmp_path, "a", x=X, y=Y), write(tmp_path, "b", x=X[:2] + 100, y=Y[:2]))
    data = federation_of_files(files, FORM)
    (samples,), (tests,) = data.clients, data.local_tests
    assert data.pool.x[samples].numpy().tolist() == X.tolist()
    assert data.pool.x[tests].numpy().tolist() == (X[:2] + 100).tolist()
    assert (data.scale, data.mean, data.std, data.classes) == (1.0, (0.5,), (2.0,), 4)
    assert len(federation_of_files(files._replace(validation=None), FORM).local_tests[0]) == 0


BAD: dict[str, tuple[dict[str, Any], str]] = {
    "another shape": ({"x": X[:, :1], "y": Y}, r"x has samples of shape \(1, 3\); the federation's"),
    "another kind of numbers": ({"x": X.astype(np.uint8), "y": Y}, "x is uint8; the federation's samples"),
    "no samples": ({"x": X[:0], "y": Y[:0]}, r"x has shape \(0, 2, 3\).*n ≥ 1"),
    "fewer labels": ({"x": X, "y": Y[:4]}, r"y \(4,\); need x of shape \[n, ...\] and y of shape \[n\]"),
    "NaN": ({"x": np.where(X == 7, np.nan, X), "y": Y}, "x is NaN or infinite in row 1"),
    "infinity": ({"x": np.where(X == 29, np.inf, X), "y": Y}, "x is NaN or infinite in row 4"),
    "a label too many": ({"x": X, "y": Y + 1}, "y has the label 4 in row 3; the federation has"),
    "a negative label": ({"x": X, "y": Y - 1}, "y is -1 in row 0"),
    "half a label": ({"x": X, "y": Y + 0.5}, "y is 0.5 in row 0"),
    "no y": ({"x": X}, "lacks y; it holds x"),
    "no x": ({"y": Y}, "lacks x; it holds y"),
    "texts": ({"x": np.full((5, 2, 3), "1"), "y": Y}, "x is not an array of numbers"),
    "complex numbers": ({"x": X + 1j, "y": Y}, "x is torch.complex64; need floating point or integers"),
    "objects": ({"x": np.array([{}], dtype=object), "y": Y}, "damaged, or not an npz of plain arrays"),
}  # fmt: skip


@pytest.mark.parametrize("part", ["data", "validation"])
@pytest.mark.parametrize("name", BAD)
def test_data_that_do_not_fit_are_refused_with_the_file_and_the_reason(
    name: str, part: str, tmp_path: Path
) -> None:
    arrays, sentence = BAD[name]
    bad, good = write(tmp_path, "bad", **arrays), write(tmp_path, "good", x=X, y=Y)
    files = SiteFiles(bad) if part == "data" else SiteFiles(good, bad)
    with pytest.raises(DataError, match=sentence) as caught:
        federation_of_files(files, FORM)
    assert str(caught.value).startswith(f"{bad}: ")


def test_a_file_that_is_missing_or_no_npz_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"no such file. Give an npz file with the arrays x and y"):
        federation_of_files(SiteFiles(tmp_path / "none.npz"), FORM)
    with pytest.raises(DataError, match=r"no such file"):
        label_names(SiteFiles(tmp_path / "none.npz"), 4)
    (tmp_path / "text.npz").write_text("x,y\n1,2\n")
    with pytest.raises(DataError, match=r"damaged, or not an npz of plain arrays"):
        federation_of_files(SiteFiles(tmp_path / "text.npz"), FORM)


def test_other_precisions_of_the_same_kind_are_accepted(tmp_path: Path) -> None:
    for dtype in (np.float64, np.float16):
        federation_of_files(SiteFiles(write(tmp_path, "a", x=X.astype(dtype), y=Y)), FORM)
    form = FORM._replace(dtype="uint8", scale=1 / 255)
    federation_of_files(SiteFiles(write(tmp_path, "a", x=X.astype(np.int64), y=Y)), form)
    with pytest.raises(DataError, match=r"multiplied by 0.00392157. Store x as uint8"):
        federation_of_files(SiteFiles(write(tmp_path, "a", x=X, y=Y)), form)


def test_names_of_labels_are_those_of_the_option_or_of_the_file(tmp_path: Path) -> None:
    names = ("a", "b", "c", "d")
    file = write(tmp_path, "a", x=X, y=Y, label_names=np.array(names))
    assert label_names(SiteFiles(file), 4) == names
    assert label_names(SiteFiles(file, labels=("e", "f", "g", "h")), 4) == ("e", "f", "g", "h")
    assert label_names(SiteFiles(write(tmp_path, "b", x=X, y=Y)), 4) == ()
    assert label_names(SiteFiles(), 4) == ()
    with pytest.raises(RequestError, match=r"label_names in .* has 4 names"):
        label_names(SiteFiles(file), 3)


def test_the_server_reads_the_names_in_its_own_npz_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    parts = {"x_train": X, "y_train": Y, "x_test": X, "y_test": Y}
    write(tmp_path, "pets", **parts, label_names=np.array(["a", "b", "c", "d"]))
    write(tmp_path, "plain", **parts)
    monkeypatch.setenv("KEDGE_DATA", str(tmp_path))
    assert stored_label_names("pets") == ("a", "b", "c", "d")
    assert stored_label_names("plain") == ()
    assert stored_label_names("digits") == ()
