"""COVIDx, by Wang et al. (2020): chest X-rays in train/ and test/, and a list of labels for each.

A line of a list reads "patient file class" or "patient file class source". The images come from several
collections, some behind an account, so they cannot be fetched: the user assembles them as
github.com/lindawangg/COVID-Net, docs/COVIDx.md, says, and puts the lists of that repository beside them.
Lists that know only positive and negative (COVIDx8B, …) have other classes and are refused.
"""

from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from kedge.core.errors import DataError, RequestError
from kedge.data.dataset import Dataset, Source
from kedge.data.download.archive import Given, cache_folder, existing
from kedge.data.download.decoded import Arrays, kept
from kedge.data.download.progress import say
from kedge.data.folder import PIXELS
from kedge.data.sources.members import Members, opened
from kedge.data.sources.pictures import pictures

CLASSES = ("normal", "pneumonia", "COVID-19")
PICTURES = (".png", ".jpg", ".jpeg")
Line = tuple[str, str, str, str]  # patient, file, class, source


def covidx(path: Given = None, size: int = 64, labels: str | None = None) -> Source:
    """Chest X-rays, grey, resized to size × size, 3 classes; to be assembled; needs Pillow.

    `path` is a folder, zip or tar with train/, test/ and their lists train*.txt and test*.txt; labels =
    "COVIDx8A" takes train_COVIDx8A.txt and test_COVIDx8A.txt where there are several. Images not in the list
    are left out. Keys: patient, and source where the list has it. The decoded images are kept in the cache.
    """
    if size < 1:
        raise RequestError(f"covidx(size={size}): need a side of at least 1 pixel.")
    home = cache_folder() / "covidx"
    if path is None and not (home / "train").is_dir():
        raise DataError(
            "covidx: its images come from collections that need an account and cannot be fetched. Assemble "
            "them as https://github.com/lindawangg/COVID-Net/blob/master/docs/COVIDx.md says, and give the "
            f"folder of train/, test/, train*.txt and test*.txt by the option path (data.path), or put "
            f"these into {home}; or put covidx.npz into the folder $KEDGE_DATA."
        )
    with opened(existing("covidx", home if path is None else path, "train/, test/ and lists")) as members:
        lists = {part: _lines(members, part, labels) for part in ("train", "test")}
        facts = (lists, sorted(members.stamps.items()), size)
        stored = kept("covidx", facts, lambda: _decoded(members, lists, size))
    train, test = (Dataset(stored[f"x_{part}"], stored[f"y_{part}"]) for part in ("train", "test"))
    keys = {key: values for key, values in stored.items() if key in ("patient", "source")}
    return Source("covidx", train, test, len(CLASSES), *PIXELS, scale=1 / 255, keys=keys)


def _lines(members: Members, part: str, labels: str | None) -> list[Line]:
    """The lines of the list of a part, checked."""
    top = [n for n in members.stamps if n.rpartition("/")[2].startswith(part) and n.endswith(".txt")]
    if labels is not None:
        top = [members.only(f"{part}_{labels}.txt")]
    if len(top) != 1:
        raise DataError(
            f"{members.where}: {'several lists' if top else 'no list'} of labels for {part} "
            f"({', '.join(sorted(top)) or f'{part}*.txt'}); need one, or name it: labels = 'COVIDx8A' takes "
            f"{part}_COVIDx8A.txt."
        )
    text = members.read(top[0]).decode(errors="replace")
    where = f"{members.where}: {top[0]}"
    return [_line(where, number, line) for number, line in enumerate(text.splitlines(), 1) if line.strip()]


def _line(where: str, number: int, line: str) -> Line:
    words = line.split()
    at = next((at for at in (len(words) - 2, len(words) - 1) if at >= 2 and words[at] in CLASSES), None)
    if at is None:
        raise DataError(
            f"{where}, line {number}: {line!r}; need patient, file, class and perhaps source, the class one "
            f"of {', '.join(CLASSES)}."
        )
    return words[0], " ".join(words[1:at]), words[at], " ".join(words[at + 1 :])


def _decoded(members: Members, lists: dict[str, list[Line]], size: int) -> Arrays:
    arrays: Arrays = {}
    for part, lines in lists.items():
        here = {
            name.rpartition("/")[2]: name
            for name in members.stamps
            if f"/{name}".rpartition("/")[0].endswith(f"/{part}") and name.lower().endswith(PICTURES)
        }
        if gone := [file for _, file, _, _ in lines if file not in here]:
            raise DataError(
                f"{members.where}: {part}/ lacks {len(gone)} of the {len(lines)} images its list names, such "
                f"as {gone[0]}."
            )
        if more := len(here) - len({file for _, file, _, _ in lines}):
            say(f"covidx: {more} images of {part}/ have no label in its list and are left out")
        names = [here[file] for _, file, _, _ in lines]
        arrays[f"x_{part}"] = pictures(f"covidx, {part}", members, names, "L", size)
        arrays[f"y_{part}"] = np.array([CLASSES.index(kind) for _, _, kind, _ in lines])
    arrays["patient"] = _strings(patient for patient, _, _, _ in lists["train"])
    if all(source for _, _, _, source in lists["train"]):
        arrays["source"] = _strings(source for _, _, _, source in lists["train"])
    return arrays


def _strings(values: Iterable[str]) -> NDArray[np.str_]:
    return np.array(list(values), dtype=np.str_)
