"""Files at data.path are compared with published checksums, and damaged files are never read as data."""

import gzip
import hashlib
import tarfile
import zipfile
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.cli.command import kedge
from tests.data import official
from tests.data.official import random_bytes
from tests.data.sources.test_pamap2 import activities, protocol, ramp

from kedge.core.errors import DataError
from kedge.data.dataset import Source
from kedge.data.datasets import load
from kedge.data.download.archive import Archive
from kedge.data.download.archive_members import open_members
from kedge.data.npz_files import npz_arrays
from kedge.data.sources import cifar, medmnist, mnist, tiny_imagenet, uci_har

IMAGES = (random_bytes(20, 3, 32, 32), random_bytes(20, seed=1) % 10)
GREY = (random_bytes(7, 28, 28), random_bytes(7, seed=1) % 10)
Patch = pytest.MonkeyPatch
Kind = tuple[str, Path]  # dataset, the file whose byte is flipped


@pytest.fixture(autouse=True)
def no_data_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("KEDGE_DATA", raising=False)


def md5(content: bytes) -> str:
    return hashlib.md5(content).hexdigest()


def published_as(archive: Archive, file: Path) -> Archive:
    """The archive with the checksum and size of `file`."""
    content = file.read_bytes()
    assert archive.checksum is not None
    kind = archive.checksum.partition(":")[0]
    return replace(archive, checksum=f"{kind}:{hashlib.new(kind, content).hexdigest()}", size=len(content))


def cifar_files(name: str) -> dict[str, bytes]:
    return official.cifar10(IMAGES, IMAGES) if name == "cifar10" else official.cifar100(IMAGES, IMAGES)


def cifar_archive(name: str, folder: Path, patch: Patch) -> Kind:
    file = official.tarred(folder / cifar.ARCHIVES[name].file, cifar_files(name))
    patch.setitem(cifar.ARCHIVES, name, published_as(cifar.ARCHIVES[name], file))
    return name, file


def cifar_batch(name: str, folder: Path, patch: Patch) -> Kind:
    files = cifar_files(name)
    official.unpacked(folder, files)
    sums = {k.rpartition("/")[2]: md5(content) for k, content in files.items()}
    patch.setitem(cifar.BATCHES, name, {k: sums[k] for k in cifar.BATCHES[name]})
    batch = next(iter(cifar.BATCHES[name]))
    return name, next(folder / k for k in files if k.endswith(f"/{batch}"))


def idx_file(name: str, file: str, folder: Path, patch: Patch) -> Kind:
    packed = official.mnist(GREY, GREY)
    plain = {k.removesuffix(".gz"): gzip.decompress(content) for k, content in packed.items()}
    official.unpacked(folder, packed if file.endswith(".gz") else plain)
    archives = [replace(a, checksum=f"md5:{md5(packed[a.file])}") for a in mnist.ARCHIVES[name]]
    patch.setitem(mnist.ARCHIVES, name, tuple(archives))
    patch.setitem(mnist.UNZIPPED, name, {k: md5(content) for k, content in plain.items()})
    return name, folder / file


def medmnist_npz(name: str, folder: Path, patch: Patch) -> Kind:
    parts = {
        part: (random_bytes(5, 28, 28, seed=k), random_bytes(5) % 11)
        for k, part in enumerate(("train", "val", "test"))
    }
    file = folder / f"{name}.npz"
    file.write_bytes(official.medmnist(**parts))
    patch.setitem(medmnist.ARCHIVES, name, replace(medmnist.ARCHIVES[name], checksum=published_as(
        medmnist.ARCHIVES[name], file).checksum))  # fmt: skip
    return name, file


def tiny_imagenet_zip(folder: Path, patch: Patch) -> Kind:
    one = official.picture(random_bytes(64, 64, 3))
    files = official.tiny_imagenet({"n1": [one] * 3, "n2": [one] * 3}, [("n1", one), ("n2", one)])
    file = official.zipped(folder / tiny_imagenet.ARCHIVE.file, files)
    patch.setattr(tiny_imagenet, "ARCHIVE", published_as(tiny_imagenet.ARCHIVE, file))
    return "tiny-imagenet", file


def uci_har_zip(folder: Path, patch: Patch) -> Kind:
    signals, six = np.random.default_rng(0).normal(size=(6, 9, 128)), np.arange(1, 7)
    files = official.uci_har("train", signals, six, six) | official.uci_har("test", signals, six, six)
    inner = official.zipped(folder / "UCI HAR Dataset.zip", files)
    file = official.zipped(folder / uci_har.ARCHIVE.file, {inner.name: inner.read_bytes()})
    inner.unlink()
    patch.setattr(uci_har, "ARCHIVE", published_as(uci_har.ARCHIVE, file))
    return "uci-har", file


def pamap2_zip(folder: Path, patch: Patch) -> Kind:
    content = official.pamap2(activities(*((k, 1000) for k in (1, 2, 3))), ramp(3000))
    return "pamap2", official.zipped(folder / "PAMAP2_Dataset.zip", protocol(subject101=content))


KINDS: dict[str, Callable[[Path, Patch], Kind]] = {
    **{f"{name}.tar.gz": partial(cifar_archive, name) for name in cifar.ARCHIVES},
    **{f"{name} unpacked": partial(cifar_batch, name) for name in cifar.ARCHIVES},
    **{
        f"{name} {file}{end}": partial(idx_file, name, file + end)
        for name in mnist.ARCHIVES
        for file in ("train-images-idx3-ubyte", "t10k-labels-idx1-ubyte")
        for end in (".gz", "")
    },
    **{f"{name}.npz": partial(medmnist_npz, name) for name in medmnist.ARCHIVES},
    "tiny-imagenet.zip": tiny_imagenet_zip,
    "uci-har.zip": uci_har_zip,
    "pamap2.zip": pamap2_zip,
}


def flip(file: Path, at: float = 0.5) -> None:
    content = bytearray(file.read_bytes())
    content[int(at * len(content))] ^= 1
    file.write_bytes(bytes(content))


def load_unverified(name: str, path: Path) -> Source | str:
    """The data read without comparing checksums, or the error message."""
    try:
        return load(name, path=path, verify=False)
    except DataError as error:
        return str(error)


@pytest.mark.parametrize("at", [0.5, 0.97])
@pytest.mark.parametrize("kind", KINDS)
def test_one_flipped_byte_in_a_file_given_by_its_path_is_refused(
    kind: str, at: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name, file = KINDS[kind](tmp_path, monkeypatch)
    path = file if file.suffix in (".zip", ".gz", ".npz") and "-ubyte" not in file.name else tmp_path
    whole = load(name, path=path)
    flip(file, at)
    with pytest.raises(DataError) as caught:
        load(name, path=path)
    assert file.name in str(caught.value)
    message = str(caught.value)
    if "pamap2" not in kind:
        assert "its checksum is " in message or f"the checksum of {file.relative_to(tmp_path)} is " in message
        assert "data.verify = false" in message
    read = load_unverified(name, path)
    if isinstance(read, str):
        assert "damaged" in read or "no idx file" in read
    else:
        assert read.train.x.shape[1:] == whole.train.x.shape[1:]


def test_the_command_ends_with_the_exit_code_of_damaged_data(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With data.verify = false the run trains on the file."""
    name, file = cifar_archive("cifar10", tmp_path, monkeypatch)
    words = ("--set", f"data={{name='{name}', path='{file}'}}", "--set", "partition=iid(clients=2)",
             "--set", "participation.per_round=2", "--set", "model.name=mlp", "--set", "rounds=1",
             "--set", "evaluation.local_test=0", "--set", "engine.name=sequential")  # fmt: skip
    assert kedge("run", "quickstart", *words, "--out", tmp_path / "whole").code == 0
    assert "verify = true" in (tmp_path / "whole/config.toml").read_text()
    wrong = {**cifar_files(name), "cifar-10-batches-py/readme.html": b"another"}
    official.tarred(file, wrong)
    found = md5(file.read_bytes())
    answer = kedge("run", "quickstart", *words, "--out", tmp_path / "run")
    assert answer.code == 3, answer
    assert f"{file}: " in answer.err
    assert f"its checksum is md5:{found}, not {cifar.ARCHIVES[name].checksum}" in answer.err
    assert "download it again from https://www.cs.toronto.edu/~kriz/cifar-10-python.tar.gz" in answer.err
    assert "--set data.verify=false" in answer.err
    assert not (tmp_path / "run").exists()
    again = kedge("run", "quickstart", *words, "--set", "data.verify=false", "--out", tmp_path / "run")
    assert again.code == 0, again
    assert "verify = false" in (tmp_path / "run/config.toml").read_text()


def test_an_archive_of_another_name_is_known_by_its_size(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name, file = tiny_imagenet_zip(tmp_path, monkeypatch)
    other = file.rename(tmp_path / "tiny-imagenet-200 (1).zip")
    load(name, path=other)
    flip(other, 0.97)
    with pytest.raises(DataError, match=r"tiny-imagenet-200 \(1\)\.zip: its checksum is"):
        load(name, path=other)


def test_batches_in_an_archive_of_one_s_own_are_compared_one_by_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name, file = cifar_batch("cifar10", tmp_path / "out", monkeypatch)
    official.zipped(tmp_path / "mine.zip", cifar_files(name))
    assert len(load(name, path=tmp_path / "mine.zip").train) == 20
    flip(file)
    official.zipped(tmp_path / "mine.zip", {f"x/{p.name}": p.read_bytes() for p in file.parent.iterdir()})
    with pytest.raises(DataError, match=r"mine\.zip: the checksum of x/data_batch_1 is md5:\w+, not md5:"):
        load(name, path=tmp_path / "mine.zip")


def test_a_zip_without_a_published_checksum_must_stay_what_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name, file = pamap2_zip(tmp_path, monkeypatch)
    load(name, path=file)
    with zipfile.ZipFile(file, "a") as archive:
        archive.writestr("more.txt", "more")
    with pytest.raises(DataError, match=r"its checksum is sha256:\w+, but it was sha256:\w+ at first use"):
        load(name, path=file)
    load(name, path=file, verify=False)
    load(name, path=file)


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_no_flipped_byte_of_an_npz_changes_what_is_read(save: Any, tmp_path: Path) -> None:
    """Flip every byte in turn: the file is refused, or its arrays are unchanged."""
    file, wanted = tmp_path / "mine.npz", ("x_train",)
    save(file, x_train=random_bytes(4, 3, 3), subject_train=np.arange(4))
    whole, arrays, refused = file.read_bytes(), npz_arrays(file, wanted), 0
    for place in range(len(whole)):
        file.write_bytes(whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :])
        try:
            found = npz_arrays(file, wanted)
        except DataError:
            refused += 1
            continue
        assert found.keys() == arrays.keys(), place
        for key, values in arrays.items():
            np.testing.assert_array_equal(found[key], values, strict=True)
    assert refused > len(whole) / 2


def test_an_array_whose_header_says_less_than_the_file_holds_is_refused(tmp_path: Path) -> None:
    """np.load reads the bytes that the header counts, and does not reach the checksum."""
    file = tmp_path / "mine.npz"
    np.savez(file, x_train=random_bytes(40_000, 3))
    file.write_bytes(file.read_bytes().replace(b"'shape': (40000, 3)", b"'shape': (30000, 3)"))
    with pytest.raises(DataError, match=r"mine\.npz: damaged"):
        npz_arrays(file, ("x_train",))


@pytest.mark.parametrize("mode", ["w:gz", "w:bz2", "w:xz"])
def test_damage_behind_the_last_file_of_a_tar_is_noticed(mode: Any, tmp_path: Path) -> None:
    """The checksum of a gzip is at its end, which is not read when only the files are read."""
    (tmp_path / "a").write_bytes(bytes(random_bytes(30_000)))
    with tarfile.open(tmp_path / "a.tar", mode) as archive:
        archive.add(tmp_path / "a", "a")
    with open_members(tmp_path / "a.tar") as members:
        assert members.read("a") == (tmp_path / "a").read_bytes()
    content = bytearray((tmp_path / "a.tar").read_bytes())
    content[-6] ^= 1
    (tmp_path / "a.tar").write_bytes(bytes(content))
    with pytest.raises(DataError, match=r"a\.tar: (damaged|no zip or tar)"), open_members(tmp_path / "a.tar"):
        pass


def test_a_zip_that_hides_its_last_file_is_refused(tmp_path: Path) -> None:
    """A wrong comment length in the list of files hides the next entry."""
    file = official.zipped(tmp_path / "a.zip", {"a": b"1", "b": b"2"})
    content = bytearray(file.read_bytes())
    second = content.rindex(b"PK\x01\x02")
    first = content.index(b"PK\x01\x02")
    content[first + 32] = second - first  # the length of the first entry's comment
    file.write_bytes(bytes(content))
    with zipfile.ZipFile(file) as archive:
        assert archive.namelist() == ["a"]
    with (
        pytest.raises(DataError, match=r"a\.zip: damaged \(it lists 1 files, but its end record says 2\)"),
        open_members(file),
    ):
        pass
