"""COVIDx (Wang et al., 2020): chest X-rays in train/ and test/, each with a list of labels.

A line of a list reads "patient file class" or "patient file class source". The images come from several
collections, some of which require an account, so kedge cannot download them: the user assembles them as
described in docs/COVIDx.md of github.com/lindawangg/COVID-Net, and adds the lists of that repository. Lists
with the classes positive and negative only (COVIDx8B, …) are refused.
"""

from collections.abc import Iterable
from typing import Annotated

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from kedge.core.errors import DataError
from kedge.core.ranges import checked
from kedge.data.dataset import Dataset, Source
from kedge.data.download.archive import PathOption, existing_path
from kedge.data.download.archive_members import Members, open_members
from kedge.data.download.cache import cache_folder
from kedge.data.download.decoded_cache import Arrays, cached_arrays
from kedge.data.download.images import decoded_images
from kedge.data.download.progress import say
from kedge.data.npz_files import IMAGE_NORMALIZATION

CLASSES = ("normal", "pneumonia", "COVID-19")
IMAGE_ENDINGS = (".png", ".jpg", ".jpeg")
Line = tuple[str, str, str, str]  # patient, file, class, source


@checked
def covidx(
    path: PathOption = None,
    size: Annotated[int, Field(ge=1, description="the side in pixels")] = 64,
    labels: str | None = None,
) -> Source:
    """Chest X-rays, gray, resized to `size` × `size`, 3 classes; assembled by the user; needs Pillow.

    `path` is a folder, zip or tar with train/, test/ and their lists train*.txt and test*.txt. If there are
    several lists, labels = "COVIDx8A" selects train_COVIDx8A.txt and test_COVIDx8A.txt. Images that are not
    in the list are left out. Keys: patient, and source if the list has it. The decoded images are stored in
    the cache.
    """
    home = cache_folder() / "covidx"
    if path is None and not (home / "train").is_dir():
        raise DataError(
            "covidx: its images come from collections that require an account, so kedge cannot download "
            "them. Assemble them as described in "
            "https://github.com/lindawangg/COVID-Net/blob/master/docs/COVIDx.md, and give the folder "
            "with train/, test/, train*.txt and test*.txt by the option path (data.path), or "
            f"put these into {home}; or put covidx.npz into the folder $KEDGE_DATA."
        )
    folder = existing_path("covidx", home if path is None else path, "train/, test/ and lists")
    with open_members(folder) as members:
        lists = {part: _lines(members, part, labels) for part in ("train", "test")}
        key = (lists, sorted(members.stamps.items()), size)
        stored = cached_arrays("covidx", key, lambda: _decoded(members, lists, size))
    train, test = (Dataset(stored[f"x_{part}"], stored[f"y_{part}"]) for part in ("train", "test"))
    keys = {name: values for name, values in stored.items() if name in ("patient", "source")}
    return Source("covidx", train, test, len(CLASSES), *IMAGE_NORMALIZATION, scale=1 / 255, keys=keys)


def _lines(members: Members, part: str, labels: str | None) -> list[Line]:
    """The checked lines of the list of labels of a part."""
    top = [n for n in members.stamps if n.rpartition("/")[2].startswith(part) and n.endswith(".txt")]
    if labels is not None:
        top = [members.find(f"{part}_{labels}.txt")]
    if len(top) != 1:
        raise DataError(
            f"{members.where}: {'several lists' if top else 'no list'} of labels for {part} "
            f"({', '.join(sorted(top)) or f'{part}*.txt'}); need one, or select one: labels = 'COVIDx8A' "
            f"selects {part}_COVIDx8A.txt."
        )
    text = members.read(top[0]).decode(errors="replace")
    where = f"{members.where}: {top[0]}"
    return [_line(where, number, line) for number, line in enumerate(text.splitlines(), 1) if line.strip()]


def _line(where: str, number: int, line: str) -> Line:
    """The parts of a line; the name of a file may contain spaces."""
    words = line.split()
    class_at = next((at for at in (len(words) - 2, len(words) - 1) if at >= 2 and words[at] in CLASSES), None)
    if class_at is None:
        raise DataError(
            f"{where}, line {number}: {line!r}; need patient, file, class and optionally source; class is "
            f"one of {', '.join(CLASSES)}."
        )
    return words[0], " ".join(words[1:class_at]), words[class_at], " ".join(words[class_at + 1 :])


def _decoded(members: Members, lists: dict[str, list[Line]], size: int) -> Arrays:
    arrays: Arrays = {}
    for part, lines in lists.items():
        here = {
            name.rpartition("/")[2]: name
            for name in members.stamps
            if f"/{name}".rpartition("/")[0].endswith(f"/{part}") and name.lower().endswith(IMAGE_ENDINGS)
        }
        if missing := [file for _, file, _, _ in lines if file not in here]:
            raise DataError(
                f"{members.where}: {part}/ lacks {len(missing)} of the {len(lines)} images in its list, "
                f"such as {missing[0]}."
            )
        if extra := len(here) - len({file for _, file, _, _ in lines}):
            say(f"covidx: {extra} images of {part}/ are not in its list and are left out")
        names = [here[file] for _, file, _, _ in lines]
        arrays[f"x_{part}"] = decoded_images(f"covidx, {part}", members, names, "L", size)
        arrays[f"y_{part}"] = np.array([CLASSES.index(kind) for _, _, kind, _ in lines])
    arrays["patient"] = _strings(patient for patient, _, _, _ in lists["train"])
    if all(source for _, _, _, source in lists["train"]):
        arrays["source"] = _strings(source for _, _, _, source in lists["train"])
    return arrays


def _strings(values: Iterable[str]) -> NDArray[np.str_]:
    return np.array(list(values), dtype=np.str_)
