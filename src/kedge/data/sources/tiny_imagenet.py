"""Tiny-ImageNet-200 (Stanford, CS231n): JPEG files in class folders, one zip.

Training images are train/<class>/images/*.JPEG; validation images are val/images/*.JPEG, with their classes
in val/val_annotations.txt. wnids.txt lists the classes; they are numbered in alphabetical order, as in
torchvision's ImageFolder. The official test images have no labels, so the 10,000 validation images are the
test set. Stanford publishes no checksum; public loaders agree on the md5.
"""

import re

import numpy as np
from numpy.typing import NDArray

from kedge.core.errors import DataError
from kedge.data.dataset import Dataset, Source
from kedge.data.download.archive import Archive, PathOption, find_archive
from kedge.data.download.archive_members import Members, open_members
from kedge.data.download.decoded_cache import Arrays, cached_arrays
from kedge.data.download.images import decoded_images
from kedge.data.npz_files import IMAGE_NORMALIZATION

ARCHIVE = Archive(
    "tiny-imagenet-200.zip",
    ("http://cs231n.stanford.edu/tiny-imagenet-200.zip", "https://cs231n.stanford.edu/tiny-imagenet-200.zip"),
    "md5:90528d7ca1a48142e341f4ef8d21d0de",
    248_100_043,
)
TRAIN = re.compile(r"(?:^|/)train/([^/]+)/images/[^/]+\.JPEG$")
VAL = re.compile(r"(?:^|/)val/images/([^/]+\.JPEG)$")
ANNOTATIONS = "val/val_annotations.txt"


def tiny_imagenet(path: PathOption = None, verify: bool = True) -> Source:
    """100,000 / 10,000 color images, 64×64, 200 classes; needs Pillow (248 MB).

    `path` is tiny-imagenet-200.zip or the folder it unpacks to; verify = false skips the
    checksum. The decoded images are stored in the cache.
    """
    with open_members(find_archive("tiny-imagenet", ARCHIVE, path, verify)) as members:
        classes = sorted(set(members.read(members.find("wnids.txt")).decode().split()))
        stored = cached_arrays(
            "tiny-imagenet", sorted(members.stamps.items()), lambda: _decoded(members, classes)
        )
    train, test = (Dataset(stored[f"x_{part}"], stored[f"y_{part}"]) for part in ("train", "test"))
    return Source("tiny-imagenet", train, test, len(classes), *IMAGE_NORMALIZATION, scale=1 / 255)


def _decoded(members: Members, classes: list[str]) -> Arrays:
    train = {name: found[1] for name in sorted(members.stamps) if (found := TRAIN.search(name))}
    test = _validation_classes(members)
    if empty := sorted(set(classes) - set(train.values())):
        raise DataError(f"{members.where}: no training images of {len(empty)} classes, such as {empty[0]}.")
    return {
        "x_train": decoded_images("tiny-imagenet, train", members, [*train], "RGB"),
        "y_train": _labels(members, train, classes),
        "x_test": decoded_images("tiny-imagenet, test", members, [*test], "RGB"),
        "y_test": _labels(members, test, classes),
    }


def _validation_classes(members: Members) -> dict[str, str]:
    """The class of every validation image, by path."""
    images = {found[1]: name for name in sorted(members.stamps) if (found := VAL.search(name))}
    lines = members.read(members.find(ANNOTATIONS)).decode().splitlines()
    known = dict(line.split("\t")[:2] for line in lines if "\t" in line)
    if unlabeled := sorted(set(images) - set(known)):
        raise DataError(
            f"{members.where}: {ANNOTATIONS} has no label for {len(unlabeled)} images, "
            f"such as {unlabeled[0]}."
        )
    if missing := sorted(set(known) - set(images)):
        raise DataError(f"{members.where}: val/images lacks {len(missing)} images, such as {missing[0]}.")
    return {name: known[file] for file, name in images.items()}


def _labels(members: Members, found: dict[str, str], classes: list[str]) -> NDArray[np.int64]:
    number = {wnid: label for label, wnid in enumerate(classes)}
    for name, wnid in found.items():
        if wnid not in number:
            raise DataError(f"{members.where}: {name} is of class {wnid}, which wnids.txt does not list.")
    return np.array([number[wnid] for wnid in found.values()], dtype=np.int64)
