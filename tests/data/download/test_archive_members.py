import io
import tarfile
import zipfile
from pathlib import Path

import pytest
from tests.data.official import tarred, unpacked, zipped

from kedge.core.errors import DataError
from kedge.data.download.archive_members import open_members

FILES = {"top/train/a.txt": b"one", "top/test/a.txt": b"two", "top/b": bytes(1000)}
ADDED = {"__MACOSX/top/b": b"", "top/._b": b"", "top/.DS_Store": b""}


def packed(kind: str, folder: Path) -> Path:
    files = {**FILES, **ADDED}
    if kind == "folder":
        return unpacked(folder / "unpacked", files)
    if kind == "tar":
        return tarred(folder / "a.tar.gz", files)
    inner = zipped(folder / "a.zip", files)
    if kind == "zip":
        return inner
    return zipped(folder / "outer.zip", {"readme.pdf": b"", "a b.zip": inner.read_bytes()})


@pytest.mark.parametrize("kind", ["folder", "tar", "zip", "zip in a zip"])
def test_members_are_the_same_however_they_are_packed(kind: str, tmp_path: Path) -> None:
    with open_members(packed(kind, tmp_path)) as members:
        assert {name: members.read(name) for name in members.stamps} == FILES
        assert members.find("train/a.txt") == "top/train/a.txt"
        assert members.find("c", "b") == "top/b"
        with pytest.raises(DataError, match=r"lacks c; it holds top/b, top/test/a\.txt, top/train/a\.txt\."):
            members.find("c")
        with pytest.raises(
            DataError, match=r"holds a\.txt more than once \(top/test/a\.txt, top/train/a\.txt\)"
        ):
            members.find("a.txt")
        with pytest.raises(DataError, match=r"lacks \.\./secret"):
            members.read("../secret")


def test_names_that_point_outside_an_archive_reach_nothing(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("mine")
    for file in (
        tarred(tmp_path / "a.tar", {"../secret": b"x"}),
        zipped(tmp_path / "a.zip", {"../secret": b"x"}),
    ):
        with open_members(file) as members:
            assert members.read("../secret") == b"x"
    with tarfile.open(tmp_path / "link.tar", "w") as archive:
        link = tarfile.TarInfo("link")
        link.type, link.linkname = tarfile.SYMTYPE, "../secret"
        archive.addfile(link)
    with open_members(tmp_path / "link.tar") as members:
        assert not members.stamps
    assert (tmp_path / "secret").read_text() == "mine"


@pytest.mark.parametrize("kind", ["tar", "zip", "zip in a zip"])
@pytest.mark.parametrize("keep", [0, 20, 0.5, 0.9])
def test_an_archive_cut_short_is_named(kind: str, keep: float, tmp_path: Path) -> None:
    file = packed(kind, tmp_path)
    content = file.read_bytes()
    file.write_bytes(content[: int(keep * len(content)) if keep < 1 else int(keep)])
    with pytest.raises(DataError, match=rf"{file.name}: .*damaged"), open_members(file):
        pass


def test_a_damaged_member_of_a_zip_is_named(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as archive:
        archive.writestr("a", b"content" * 10)
    content = bytearray((tmp_path / "a.zip").read_bytes())
    content[content.index(b"contentcontent")] ^= 1
    (tmp_path / "a.zip").write_bytes(bytes(content))
    with open_members(tmp_path / "a.zip") as members, pytest.raises(DataError, match=r"a\.zip: a is damaged"):
        members.read("a")


def test_an_inner_zip_that_is_none_is_named(tmp_path: Path) -> None:
    stream = io.BytesIO(b"no zip")
    file = zipped(tmp_path / "a.zip", {"inner.zip": stream.read()})
    with pytest.raises(DataError, match=r"a\.zip: damaged \(File is not a zip file\)"), open_members(file):
        pass
