from pathlib import Path

import numpy as np
import pytest

from kedge.core.errors import DataError
from kedge.data.download.decoded_cache import Arrays, cached_arrays


def decode() -> Arrays:
    return {"x": np.arange(6).reshape(2, 3), "names": np.array(["a", "bc"])}


def fail() -> Arrays:
    raise AssertionError("decoded again")


def test_arrays_are_decoded_once_for_the_same_key(cache: Path) -> None:
    for function in (decode, fail):
        arrays = cached_arrays("mine", (1, "a"), function)
        assert {name: values.tolist() for name, values in arrays.items()} == {
            "x": [[0, 1, 2], [3, 4, 5]], "names": ["a", "bc"],
        }  # fmt: skip
    with pytest.raises(AssertionError, match="decoded again"):
        cached_arrays("mine", (2, "a"), fail)


def test_a_change_to_an_array_does_not_reach_the_file() -> None:
    assert isinstance(cached_arrays("mine", 1, decode)["x"], np.memmap)
    cached_arrays("mine", 1, decode)["x"][0, 0] = 7
    assert cached_arrays("mine", 1, fail)["x"][0, 0] == 0


def test_an_interruption_leaves_nothing_behind(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(np, "save", interrupt)
        with pytest.raises(KeyboardInterrupt):
            cached_arrays("mine", 1, decode)
    assert [file.name for file in (cache / "mine").iterdir() if not file.name.endswith(".lock")] == []
    assert cached_arrays("mine", 1, decode)["x"].shape == (2, 3)


def test_a_damaged_copy_and_a_folder_that_cannot_be_written_are_named(cache: Path) -> None:
    cached_arrays("mine", 1, decode)
    next((cache / "mine").glob("decoded-*/x.npy")).write_bytes(b"short")
    with pytest.raises(DataError, match=r"decoded-\w+: damaged \(.*delete it, and it is decoded again"):
        cached_arrays("mine", 1, fail)
    (cache / "yours").write_text("a file")
    with pytest.raises(DataError, match=r"yours cannot be written"):
        cached_arrays("yours", 1, decode)
