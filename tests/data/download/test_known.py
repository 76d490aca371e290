"""Addresses and checksums of torchvision and medmnist, by stand-ins with the same attributes."""

import hashlib
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from tests.data import official
from tests.data.official import drawn
from tests.data.serving import served

from kedge.data.datasets import load
from kedge.data.download.known import from_medmnist, from_torchvision
from kedge.data.sources import cifar, idx, medmnist

TORCHVISION = """
class CIFAR10:
    url, filename, tgz_md5 = "https://new.example/cifar-10-python.tar.gz", "cifar-10-python.tar.gz", "0123"
class MNIST:
    mirrors = ["https://one.example/", "https://two.example/"]
    resources = [("train-images-idx3-ubyte.gz", "4567")]
"""


@pytest.fixture
def packages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder that Python imports from first."""
    ours = {
        name: module
        for name, module in sys.modules.items()
        if name.split(".")[0] in ("torchvision", "medmnist")
    }
    for name in ours:
        del sys.modules[name]
    monkeypatch.syspath_prepend(tmp_path / "site")
    monkeypatch.delenv("KEDGE_DATA", raising=False)
    yield tmp_path / "site"
    for name in [n for n in sys.modules if n.split(".")[0] in ("torchvision", "medmnist")]:
        del sys.modules[name]
    sys.modules.update(ours)


def test_torchvision_s_addresses_come_first_and_its_checksum_will_do(packages: Path) -> None:
    official.unpacked(
        packages, {"torchvision/__init__.py": b"", "torchvision/datasets.py": TORCHVISION.encode()}
    )
    ours = cifar.ARCHIVES["cifar10"]
    found = from_torchvision("CIFAR10", ours)
    assert found.addresses == ("https://new.example/cifar-10-python.tar.gz", *ours.addresses)
    assert found.checksums == (*ours.checksums, "md5:0123")
    assert from_torchvision("CIFAR100", cifar.ARCHIVES["cifar100"]) == cifar.ARCHIVES["cifar100"]
    images, labels = idx.ARCHIVES["mnist"][:2]
    expected = (
        "https://one.example/train-images-idx3-ubyte.gz",
        "https://two.example/train-images-idx3-ubyte.gz",
    )
    assert from_torchvision("MNIST", images).addresses[:2] == expected
    assert from_torchvision("MNIST", labels) == labels


def test_a_newer_medmnist_is_believed(packages: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Fetched by the installed package's address and checksum, and still good when it is read again."""
    content = official.medmnist(
        **{part: (drawn(3, 28, 28), np.arange(3)) for part in ("train", "val", "test")}
    )
    with served({"new.npz": content}) as site:
        info = {"organamnist": {"url": site.url("new.npz"), "MD5": hashlib.md5(content).hexdigest()}}
        official.unpacked(packages, {"medmnist/__init__.py": f"print('hello')\nINFO = {info!r}".encode()})
        assert len(load("organamnist").train) == 3
    assert len(load("organamnist").train) == 3
    assert from_medmnist("organcmnist", medmnist.ARCHIVES["organcmnist"]) == medmnist.ARCHIVES["organcmnist"]


@pytest.mark.parametrize("reason", ["ImportError('absent')", "RuntimeError('built for another torch')"])
def test_packages_that_are_absent_or_broken_change_nothing(packages: Path, reason: str) -> None:
    official.unpacked(
        packages, {f"{n}/__init__.py": f"raise {reason}".encode() for n in ("torchvision", "medmnist")}
    )
    assert from_torchvision("CIFAR10", cifar.ARCHIVES["cifar10"]) == cifar.ARCHIVES["cifar10"]
    ours = medmnist.ARCHIVES["organamnist"]
    assert from_medmnist("organamnist", ours) == ours
