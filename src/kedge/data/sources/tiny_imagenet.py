"""Tiny-ImageNet-200, made for Stanford's CS231n: JPEG files in class folders, one zip.

train/<class>/images/*.JPEG; val/images/*.JPEG with their classes in val/val_annotations.txt; wnids.txt lists
the classes, which are numbered in alphabetical order, as torchvision's ImageFolder does. The official test
images have no labels, so the 10,000 validation images serve as the test set. Stanford publishes no checksum;
the md5 is the one that public loaders agree on.
"""

import re

import numpy as np
from numpy.typing import NDArray

from kedge.core.errors import DataError
from kedge.data.dataset import Dataset, Source
from kedge.data.download.archive import Archive, Given, located
from kedge.data.download.decoded import Arrays, kept
from kedge.data.folder import PIXELS
from kedge.data.sources.members import Members, opened
from kedge.data.sources.pictures import pictures

ARCHIVE = Archive(
    "tiny-imagenet-200.zip",
    ("http://cs231n.stanford.edu/tiny-imagenet-200.zip", "https://cs231n.stanford.edu/tiny-imagenet-200.zip"),
    ("md5:90528d7ca1a48142e341f4ef8d21d0de",),
    248_100_043,
)
TRAIN = re.compile(r"(?:^|/)train/([^/]+)/images/[^/]+\.JPEG$")
VAL = re.compile(r"(?:^|/)val/images/([^/]+\.JPEG)$")
ANNOTATIONS = "val/val_annotations.txt"


def tiny_imagenet(path: Given = None, verify: bool = True) -> Source:
    """100,000 / 10,000 color images, 64×64, 200 classes; needs Pillow (248 MB).

    `path` is tiny-imagenet-200.zip or the folder it unpacks to; verify = false: do not compare its
    checksum. The decoded images are kept in the cache.
    """
    with opened(located("tiny-imagenet", ARCHIVE, path, verify=verify)) as members:
        classes = sorted(set(members.read(members.only("wnids.txt")).decode().split()))
        stored = kept("tiny-imagenet", sorted(members.stamps.items()), lambda: _decoded(members, classes))
    train, test = (Dataset(stored[f"x_{part}"], stored[f"y_{part}"]) for part in ("train", "test"))
    return Source("tiny-imagenet", train, test, len(classes), *PIXELS, scale=1 / 255)


def _decoded(members: Members, classes: list[str]) -> Arrays:
    train = {name: found[1] for name in sorted(members.stamps) if (found := TRAIN.search(name))}
    test = _annotated(members)
    if empty := sorted(set(classes) - set(train.values())):
        raise DataError(f"{members.where}: no training images of {len(empty)} classes, such as {empty[0]}.")
    return {
        "x_train": pictures("tiny-imagenet, train", members, [*train], "RGB"),
        "y_train": _labels(members, train, classes),
        "x_test": pictures("tiny-imagenet, test", members, [*test], "RGB"),
        "y_test": _labels(members, test, classes),
    }


def _annotated(members: Members) -> dict[str, str]:
    """The class of every validation image."""
    images = {found[1]: name for name in sorted(members.stamps) if (found := VAL.search(name))}
    lines = members.read(members.only(ANNOTATIONS)).decode().splitlines()
    known = dict(line.split("\t")[:2] for line in lines if "\t" in line)
    if nameless := sorted(set(images) - set(known)):
        raise DataError(
            f"{members.where}: {ANNOTATIONS} has no label for {len(nameless)} images, such as {nameless[0]}."
        )
    if gone := sorted(set(known) - set(images)):
        raise DataError(f"{members.where}: val/images lacks {len(gone)} images, such as {gone[0]}.")
    return {name: known[file] for file, name in images.items()}


def _labels(members: Members, found: dict[str, str], classes: list[str]) -> NDArray[np.int64]:
    number = {wnid: label for label, wnid in enumerate(classes)}
    for name, wnid in found.items():
        if wnid not in number:
            raise DataError(f"{members.where}: {name} is of class {wnid}, which wnids.txt does not list.")
    return np.array([number[wnid] for wnid in found.values()], dtype=np.int64)
