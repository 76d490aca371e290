"""PAMAP2: recordings in its format, with gaps; windows are compared with the written numbers."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from tests.data import official
from tests.data.web_server import served

from kedge.core.errors import DataError, RequestError
from kedge.data.datasets import load
from kedge.data.partitions.partition import Natural
from kedge.data.sources import pamap2

Floats = NDArray[np.float64]
KEPT = [1, 2, 3, 4, 6, 7, 13, 16, 17, 24]


@pytest.fixture(autouse=True)
def no_data_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("KEDGE_DATA", raising=False)


def ramp(rows: int, offset: float = 0.0) -> Floats:
    """Channel c of row r is r + 1000 c + offset: every number identifies its row and channel."""
    return np.arange(rows)[:, None] + 1000.0 * np.arange(27) + offset


def activities(*runs: tuple[int, int]) -> NDArray[np.int64]:
    return np.concatenate([np.full(rows, activity) for activity, rows in runs])


def protocol(**subjects: bytes) -> dict[str, bytes]:
    files = {f"PAMAP2_Dataset/Protocol/{name}.dat": content for name, content in subjects.items()}
    return {**files, "PAMAP2_Dataset/Optional/subject101.dat": b"9", "PAMAP2_Dataset/readme.pdf": b"?"}


def written(folder: Path, **subjects: bytes) -> Path:
    return official.unpacked(folder, protocol(**subjects))


def starts(x: torch.Tensor) -> list[int]:
    """The first row of each window, from channel 0."""
    return [round(value) for value in x[:, 0, 0, 0].tolist()]


def test_windows_hold_27_channels_of_one_activity_each(tmp_path: Path) -> None:
    """1,000 rows of walking give rows 0–799 to training and 800–999 to testing."""
    values = ramp(1500)
    content = official.pamap2(activities((0, 100), (4, 1000), (0, 400)), values)
    source = load("pamap2", path=written(tmp_path, subject101=content))
    assert source.train.x.shape == (7, 27, 1, 200)
    assert source.train.x.dtype == torch.float32
    assert starts(source.train.x) == [100, 200, 300, 400, 500, 600, 700]
    assert starts(source.test.x) == [900]
    for window, start in zip(source.train.x, starts(source.train.x), strict=True):
        np.testing.assert_array_equal(window[:, 0], values[start : start + 200].T)
    assert source.train.y.tolist() == [3] * 7
    assert source.classes == 10


@pytest.mark.parametrize(
    ("step", "train", "test"), [(200, [0, 200, 400, 600], [800]), (50, 13, 1), (1000, [0], [800])]
)
def test_the_step_is_where_windows_begin(
    step: int, train: list[int] | int, test: list[int] | int, tmp_path: Path
) -> None:
    content = official.pamap2(activities((1, 1000)), ramp(1000))
    source = load("pamap2", path=written(tmp_path, subject101=content), step=step)
    for part, expected in ((source.train, train), (source.test, test)):
        found = starts(part.x)
        assert found == expected if isinstance(expected, list) else len(found) == expected


def test_no_test_window_shares_a_row_with_a_training_window(tmp_path: Path) -> None:
    """Two runs of one activity: the last fifth of their 1,300 rows, the end of the second, is for testing."""
    content = official.pamap2(activities((2, 700), (3, 50), (2, 600)), ramp(1350))
    source = load("pamap2", path=written(tmp_path, subject101=content), step=10)
    train, test = starts(source.train.x), starts(source.test.x)
    assert max(train) + 200 <= min(test)
    assert min(test) == 750 + (1040 - 700)
    assert not any(500 < start < 750 for start in train)  # no window contains rows of both activities
    assert set(source.train.y.tolist()) == {1}


@pytest.mark.slow
def test_subjects_are_a_natural_split_and_the_kept_activities_are_numbered(tmp_path: Path) -> None:
    everything = official.pamap2(activities(*((a, 1000) for a in pamap2.PROTOCOL)), ramp(13_000))
    some = official.pamap2(activities((24, 1000)), ramp(1000))
    source = load("pamap2", path=written(tmp_path, subject101=everything, subject109=some), step=200)
    found = dict(
        zip(
            (np.array(starts(source.train.x[:40])) // 1000).tolist(),
            source.train.y[:40].tolist(),
            strict=True,
        )
    )
    assert {pamap2.PROTOCOL[run]: label for run, label in found.items()} == {a: k for k, a in enumerate(KEPT)}
    assert source.keys["subject"].tolist() == [101] * 40 + [109] * 4
    assert source.train.y[40:].tolist() == [9] * 4
    assert [len(own) for own in Natural()(source.train.y.numpy(), 0, source.keys["subject"])] == [40, 4]
    other = load("pamap2", path=tmp_path, step=200, drop=(0, 5, 24))
    assert set(other.keys["subject"].tolist()) == {101}
    assert other.classes == 10


def test_short_gaps_are_bridged_by_straight_lines(tmp_path: Path) -> None:
    """The signal is a straight line, so interpolation restores it; at the ends the nearest value is used."""
    values = ramp(1000)
    values[300:499, 5] = np.nan
    values[350:353] = np.nan
    values[:2, 0] = np.nan
    values[998:, 26] = np.nan
    content = official.pamap2(activities((1, 1000)), values)
    source = load("pamap2", path=written(tmp_path, subject101=content), step=200)
    whole = ramp(1000)
    whole[:2, 0], whole[998:, 26] = 2, whole[997, 26]
    together = torch.cat([*source.train.x, *source.test.x], dim=-1)[:, 0]
    np.testing.assert_allclose(together, whole.T, rtol=1e-6)


def test_gaps_do_not_reach_over_the_end_of_an_activity(tmp_path: Path) -> None:
    """Interpolation uses rows of the same run only: the last value is repeated, up to the next run."""
    values = ramp(2000)
    values[1000:] += 5000
    values[990:1000] = np.nan
    content = official.pamap2(activities((1, 1000), (4, 1000)), values)
    source = load("pamap2", path=written(tmp_path, subject101=content), step=200)
    lying = source.test.x[source.test.y == 0][-1]
    np.testing.assert_array_equal(lying[:, 0, -10:], np.repeat(values[989][:, None], 10, axis=1))


def test_a_gap_of_a_window_or_more_is_left_out_and_counted(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Rows 400–699 lack a channel: 0–399 and 700–1,399 remain, 1,100 rows, of which 880 are for training."""
    values = ramp(1400)
    values[400:700, 13] = np.nan
    content = official.pamap2(activities((6, 1400)), values)
    path = written(tmp_path, subject101=content)
    source = load("pamap2", path=path)
    assert (
        "pamap2: 300 of 1,400 rows are left out: in these a channel is missing for 200"
        in capsys.readouterr().err
    )
    assert starts(source.train.x) == [0, 100, 200, 700, 800, 900]
    assert starts(source.test.x) == [1180]
    for part in (source.train.x, source.test.x):
        for window, start in zip(part, starts(part), strict=True):
            np.testing.assert_array_equal(window[:, 0], values[start : start + 200].T)


def test_a_recording_that_lacks_a_channel_altogether_gives_nothing(tmp_path: Path) -> None:
    values = ramp(1000)
    values[:, 3] = np.nan
    path = written(tmp_path, subject101=official.pamap2(activities((1, 1000)), values))
    with pytest.raises(DataError, match=r"no window of 200 rows for the train part"):
        load("pamap2", path=path)


def test_channels_are_standardized_by_the_training_windows(tmp_path: Path) -> None:
    values = np.random.default_rng(3).normal(5, 2, size=(1000, 27)).round(3)
    values[:, 8] = 4.0
    source = load("pamap2", path=written(tmp_path, subject101=official.pamap2(activities((1, 1000)), values)))
    np.testing.assert_allclose(source.mean, source.train.x.double().mean((0, 2, 3)), rtol=1e-12)
    expected = source.train.x.double().std((0, 2, 3), correction=0)
    expected[8] = 1
    np.testing.assert_allclose(source.std, expected, rtol=1e-12)


def test_uci_s_zip_is_fetched_and_cut_once(
    tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    content = official.pamap2(activities((1, 1000)), ramp(1000))
    inner = official.zipped(tmp_path / "PAMAP2_Dataset.zip", protocol(subject101=content))
    outer = official.zipped(
        tmp_path / "outer.zip", {"readme.pdf": b"?", "PAMAP2_Dataset.zip": inner.read_bytes()}
    )
    with served({pamap2.ARCHIVE.file: outer.read_bytes()}) as site:
        small = replace(pamap2.ARCHIVE, addresses=(site.url(pamap2.ARCHIVE.file),))
        monkeypatch.setattr(pamap2, "ARCHIVE", small)
        assert starts(load("pamap2").test.x) == [800]
    monkeypatch.setattr("kedge.data.sources.pamap2.windows", None)  # decoding again would fail
    assert starts(load("pamap2").test.x) == [800]
    assert (cache / "pamap2" / f"{pamap2.ARCHIVE.file}.sha256").exists()
    monkeypatch.undo()


@pytest.mark.parametrize("inside", ["", "PAMAP2_Dataset", "PAMAP2_Dataset/Protocol", "zip"])
def test_any_level_of_the_unpacked_folder_will_do(inside: str, tmp_path: Path) -> None:
    content = official.pamap2(activities((1, 1000)), ramp(1000))
    path = written(tmp_path / "out", subject105=content) / inside
    if inside == "zip":
        path = official.zipped(tmp_path / "PAMAP2_Dataset.zip", protocol(subject105=content))
    assert load("pamap2", path=path).keys["subject"].tolist() == [105] * 7


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"0.00 1 NaN 1 2\n", r"subject101\.dat is damaged \(.*column"),
        (official.pamap2(activities((1, 2)), ramp(2)).replace(b"NaN", b"N/A", 1) + b"0.1 one", r"is damaged"),
        (
            official.pamap2(activities((1, 5), (9, 1)), ramp(6)),
            r"activity 9 in line 6; the protocol has 0, 1, 2",
        ),
        (official.pamap2(activities((1, 199)), ramp(199)), r"no window of 200 rows for the train part"),
        (official.pamap2(activities((1, 500)), ramp(500)), r"no window of 200 rows for the test part"),
    ],
)
def test_what_does_not_fit_is_named(content: bytes, reason: str, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=reason):
        load("pamap2", path=written(tmp_path, subject101=content))


def test_a_folder_without_recordings_is_named(tmp_path: Path) -> None:
    (tmp_path / "other.txt").write_text("")
    with pytest.raises(DataError, match=r"lacks Protocol/subject101\.dat; it holds other\.txt"):
        load("pamap2", path=tmp_path)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"step": 0}, r"pamap2\(step=0\): need a whole number of at least 1"),
        ({"test": 0.0}, r"pamap2\(test=0\.0\): need 0 < test < 1"),
        ({"test": 1.0}, r"pamap2\(test=1\.0\): need 0 < test < 1"),
        ({"drop": (8,)}, r"pamap2\(drop=\[8\]\): need activities from 0, 1, 2"),
        ({"drop": pamap2.PROTOCOL}, r"pamap2\(drop=\[0, 1, .*not all of them"),
    ],
)
def test_options_that_cannot_be_are_refused(wrong: dict[str, object], message: str, tmp_path: Path) -> None:
    with pytest.raises(RequestError, match=message):
        load("pamap2", path=tmp_path, **wrong)
