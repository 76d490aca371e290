"""PAMAP2 (Reiss and Stricker, 2012): nine people with sensors on hand, chest and ankle, 100 rows a second.

A row of Protocol/subject1xx.dat has time, activity, heart rate and 17 values of each sensor. Nine of these
are used: acceleration (±16 g), angular velocity and magnetic field along three axes; 27 channels in all. A
run of consecutive rows of one activity is cut into windows of 200 rows. Missing values (NaN) are interpolated
linearly inside a run. A gap of 200 rows or more in any channel splits the run; a message gives the number of
rows that this leaves out. Channels are standardized by mean and standard deviation of the training windows.

Activities 0, 5 and 12 are removed, as in PersonalizedFL's PAMAP2-Net. As raw labels these are transitions,
running and ascending stairs. Ten remain, numbered 0 to 9 in this order: lying, sitting, standing, walking,
cycling, Nordic walking, descending stairs, vacuum cleaning, ironing, rope jumping. If that code numbered the
activities 0 to 12 first, it removed running and rope jumping: drop = [0, 5, 24].

UCI publishes no checksum: kedge checks that the zip is whole, stores its sha256 and compares it on later use.
"""

import io
import re
from typing import Annotated

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from kedge.core.errors import DataError, RequestError
from kedge.core.ranges import checked
from kedge.data.dataset import Dataset, Source
from kedge.data.download.archive import Archive, PathOption, find_archive
from kedge.data.download.archive_members import Members, open_members
from kedge.data.download.decoded_cache import Arrays, cached_arrays
from kedge.data.download.progress import item_progress, say

ARCHIVE = Archive(
    "pamap2+physical+activity+monitoring.zip",
    ("https://archive.ics.uci.edu/static/public/231/pamap2+physical+activity+monitoring.zip",),
)
WINDOW = 200
# Transitions; lying, sitting, standing, walking, running, cycling, Nordic walking; stairs up, stairs down,
# vacuum cleaning, ironing, rope jumping.
PROTOCOL = (0, 1, 2, 3, 4, 5, 6, 7, 12, 13, 16, 17, 24)
CHANNELS = tuple(3 + 17 * sensor + k for sensor in range(3) for k in (1, 2, 3, 7, 8, 9, 10, 11, 12))
RECORDING = re.compile(r"(?:^|/)subject(\d+)\.dat$")
Values = NDArray[np.float32]  # [rows, 27]


@checked
def pamap2(
    path: PathOption = None,
    step: Annotated[int, Field(ge=1)] = 100,
    drop: tuple[int, ...] = (0, 5, 12),
    test: Annotated[float, Field(gt=0, lt=1)] = 0.2,
    verify: bool = True,
) -> Source:
    """Windows of body sensors, 27×1×200, 10 activities, 9 subjects (about 690 MB).

    `path` is UCI's zip, the PAMAP2_Dataset.zip in it, or the folder it unpacks to. A window begins every
    `step` rows; activities in `drop` are removed. The last share `test` of the rows of each subject's
    activity is the test set, so test windows do not overlap training windows. Key: subject. The windows are
    stored in the cache folder. A zip must not change after its first use; verify = false accepts a changed
    one.
    """
    kept_labels = [activity for activity in PROTOCOL if activity not in drop]
    if not set(drop) <= set(PROTOCOL) or not kept_labels:
        raise RequestError(
            f"pamap2(drop={list(drop)}): need activities from {', '.join(map(str, PROTOCOL))}, and "
            "not all of them."
        )
    with open_members(find_archive("pamap2", ARCHIVE, path, verify)) as members:
        key = (sorted(members.stamps.items()), step, kept_labels, test)
        stored = cached_arrays("pamap2", key, lambda: _windows(members, step, kept_labels, test))
    train_set, test_set = (Dataset(stored[f"x_{part}"], stored[f"y_{part}"]) for part in ("train", "test"))
    mean, std = (tuple(stored[name].tolist()) for name in ("mean", "std"))
    subjects = [{"subject": stored[f"subject_{part}"]} for part in ("train", "test")]
    return Source(
        "pamap2",
        train_set,
        test_set,
        len(kept_labels),
        mean,
        std,
        keys=subjects[0],
        test_keys=subjects[1],
    )


def _windows(members: Members, step: int, kept_labels: list[int], test: float) -> Arrays:
    """The windows of the training and the test part, ordered by subject, then by activity."""
    x: dict[str, list[Values]] = {"train": [], "test": []}
    counts: dict[str, list[tuple[int, int, int]]] = {"train": [], "test": []}  # windows, label, subject
    rows = left_out = 0
    recordings = _recordings(members)
    with item_progress("pamap2, recordings", len(recordings)) as update:
        for number, (subject, name) in enumerate(recordings.items(), 1):
            activity, values = _recording(members, name)
            for label, kept in enumerate(kept_labels):
                pieces, lost = gapless_pieces(values, activity == kept)
                rows, left_out = rows + int((activity == kept).sum()), left_out + lost
                for part, pieces_of_part in zip(x, split(pieces, test), strict=True):
                    part_windows = windows(pieces_of_part, step)
                    x[part].append(part_windows)
                    counts[part].append((len(part_windows), label, subject))
            update(number)
    if left_out:
        say(
            f"pamap2: {left_out:,} of {rows:,} rows are left out: in these a channel is missing for {WINDOW} "
            "consecutive rows or more"
        )
    arrays: Arrays = {}
    for part in x:
        arrays[f"x_{part}"] = np.concatenate(x[part])
        lengths, labels, subjects = (np.array(column) for column in zip(*counts[part], strict=True))
        arrays[f"y_{part}"], subject_of = np.repeat(labels, lengths), np.repeat(subjects, lengths)
        if not len(subject_of):
            raise DataError(f"{members.where}: no window of {WINDOW} rows for the {part} part.")
        arrays[f"subject_{part}"] = subject_of
    channels = np.moveaxis(arrays["x_train"], 1, 0)
    arrays["mean"] = np.array([channel.mean(dtype=np.float64) for channel in channels])
    deviation = np.array([channel.std(dtype=np.float64) for channel in channels])
    arrays["std"] = np.where(deviation > 0, deviation, 1.0)  # a constant channel
    return arrays


def _recordings(members: Members) -> dict[int, str]:
    """The recording of each subject; those of optional activities are ignored."""
    found = {
        int(match[1]): name
        for name in sorted(members.stamps)
        if (match := RECORDING.search(name)) and "Optional/" not in name
    }
    if not found:
        members.find("Protocol/subject101.dat")  # raises: it is missing
    return dict(sorted(found.items()))


def _recording(members: Members, name: str) -> tuple[NDArray[np.float32], Values]:
    """The activity and the 27 channels of every row."""
    text = io.BytesIO(members.read(name))
    try:
        table = np.loadtxt(text, dtype=np.float32, usecols=(1, *CHANNELS), ndmin=2)
    except ValueError as error:
        raise DataError(f"{members.where}: {name} is damaged ({error}); put a whole copy there.") from error
    if (unknown := ~np.isin(table[:, 0], PROTOCOL)).any():
        row = int(np.flatnonzero(unknown)[0])
        raise DataError(
            f"{members.where}: {name} has activity {table[row, 0]:g} in line {row + 1}; the protocol has "
            f"{', '.join(map(str, PROTOCOL))}."
        )
    return table[:, 0], table[:, 1:]


def gapless_pieces(values: Values, selected: NDArray[np.bool_]) -> tuple[list[Values], int]:
    """The runs of selected rows, split at long gaps, and the number of rows in long gaps.

    A gap shorter than a window is interpolated; at the ends of a run it takes the nearest value.
    """
    pieces, lost = [], 0
    for start, end in _runs(selected):
        missing = np.isnan(values[start:end])
        long = np.zeros(end - start, dtype=bool)
        for channel in missing.T[missing.any(0)]:
            for first, after in _runs(channel):
                long[first:after] |= after - first >= WINDOW
        lost += int(long.sum())
        pieces += [_interpolated(values[start + first : start + after]) for first, after in _runs(~long)]
    return [piece for piece in pieces if len(piece) >= WINDOW], lost


def _runs(flags: NDArray[np.bool_]) -> list[tuple[int, int]]:
    """The runs of consecutive set flags, as (first, last + 1)."""
    edges = np.flatnonzero(np.diff(flags.astype(np.int8), prepend=0, append=0))
    return [(int(first), int(after)) for first, after in edges.reshape(-1, 2)]


def _interpolated(piece: Values) -> Values:
    """A copy of `piece` with missing values interpolated; a channel without any value stays missing."""
    filled, rows = piece.copy(), np.arange(len(piece))
    for channel in filled.T:
        missing = np.isnan(channel)
        if missing.any() and not missing.all():
            channel[missing] = np.interp(rows[missing], rows[~missing], channel[~missing])
    return filled


def split(pieces: list[Values], test: float) -> tuple[list[Values], list[Values]]:
    """The pieces cut into a training and a test part; the last share `test` of all rows is the test part."""
    before = round((1 - test) * sum(map(len, pieces)))
    ends = np.cumsum([0, *map(len, pieces)])
    cuts = [int(np.clip(before - end, 0, len(piece))) for end, piece in zip(ends, pieces, strict=False)]
    return (
        [piece[:cut] for piece, cut in zip(pieces, cuts, strict=True)],
        [piece[cut:] for piece, cut in zip(pieces, cuts, strict=True)],
    )


def windows(pieces: list[Values], step: int) -> Values:
    """All windows of the pieces, [n, 27, 1, 200]; in each piece a window begins every `step` rows."""
    views = [
        np.lib.stride_tricks.sliding_window_view(piece, WINDOW, axis=0)[::step]
        for piece in pieces
        if len(piece) >= WINDOW
    ]
    cut = np.concatenate([np.empty((0, len(CHANNELS), WINDOW), np.float32), *views])
    return cut[:, :, None]
