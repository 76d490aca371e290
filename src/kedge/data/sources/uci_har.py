"""UCI HAR (Anguita et al., 2013): sensor windows of a phone worn on the waist, as text files.

A window has 128 samples at 50 Hz of the nine raw signals, not the 561 derived features: body acceleration,
angular velocity and total acceleration along x, y and z, in g and rad/s. The official split is by subject: 21
train, 9 test. The sha256 is that of UCI's present download, a zip of "UCI HAR Dataset.zip", as recorded by
several projects.
"""

import io

import numpy as np
from numpy.typing import NDArray

from kedge.core.errors import DataError
from kedge.data.dataset import Dataset, Source
from kedge.data.download.archive import Archive, PathOption, find_archive
from kedge.data.download.archive_members import Members, open_members

ARCHIVE = Archive(
    "human+activity+recognition+using+smartphones.zip",
    ("https://archive.ics.uci.edu/static/public/240/human+activity+recognition+using+smartphones.zip",),
    "sha256:c00b803081a5c797cd5e4b83700a9810b38d53d9d84e01917e090e1fdbc81031",
    61_005_872,
)
SIGNALS = tuple(f"{kind}_{axis}" for kind in ("body_acc", "body_gyro", "total_acc") for axis in "xyz")
WINDOW = 128
ACTIVITIES = 6  # walking, upstairs, downstairs, sitting, standing, laying: 1 to 6 become 0 to 5


def uci_har(path: PathOption = None, verify: bool = True) -> Source:
    """7,352 / 2,947 windows of phone sensors, 9×128, 6 activities, by subject (61 MB).

    `path` is UCI's zip, the "UCI HAR Dataset.zip" in it, or the folder it unpacks to; verify =
    false skips the checksum. Key: subject.
    """
    with open_members(find_archive("uci-har", ARCHIVE, path, verify)) as members:
        train, test = (_part(members, part) for part in ("train", "test"))
        subjects: list[dict[str, NDArray[np.generic]]] = [
            {"subject": _numbers(members, f"subject_{part}.txt", (count, 1))[:, 0].astype(np.int64)}
            for part, count in (("train", len(train)), ("test", len(test)))
        ]
    return Source("uci-har", train, test, ACTIVITIES, keys=subjects[0], test_keys=subjects[1])


def _part(members: Members, part: str) -> Dataset:
    labels = _numbers(members, f"y_{part}.txt", (None, 1))[:, 0]
    wrong = (labels < 1) | (labels > ACTIVITIES) | (labels != np.floor(labels))
    if wrong.any():
        row = int(np.flatnonzero(wrong)[0])
        raise DataError(
            f"{members.where}: y_{part}.txt has activity {labels[row]:g} in line {row + 1}; need 1 to 6."
        )
    files = [f"Inertial Signals/{signal}_{part}.txt" for signal in SIGNALS]
    signals = [_numbers(members, file, (len(labels), WINDOW)) for file in files]
    try:
        return Dataset(np.stack(signals, axis=1), labels.astype(np.int64) - 1)
    except DataError as error:
        raise DataError(f"{members.where}, {part} part: {error}") from error


def _numbers(members: Members, file: str, shape: tuple[int | None, int]) -> NDArray[np.float32]:
    name = members.find(file)
    text = io.BytesIO(members.read(name))
    try:
        numbers = np.loadtxt(text, dtype=np.float32, ndmin=2)
    except ValueError as error:
        raise DataError(f"{members.where}: {name} is damaged ({error}); put a whole copy there.") from error
    if numbers.shape[1] != shape[1] or shape[0] not in (None, len(numbers)):
        raise DataError(
            f"{members.where}: {name} has {len(numbers)} lines of {numbers.shape[1]} numbers; "
            f"need {shape[0] or 'some'} of {shape[1]}."
        )
    return numbers
