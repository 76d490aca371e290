"""Downloads over real HTTP on this machine: complete, interrupted, resumed, refused, by two processes."""

import hashlib
import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from tests.data.official import zipped
from tests.data.web_server import Site, served

import kedge
from kedge.core.errors import DataError
from kedge.data.download.archive import Archive, fetch, find_archive
from kedge.data.download.cache import cache_folder

CONTENT = bytes(range(256)) * 4000  # about a megabyte
MD5 = f"md5:{hashlib.md5(CONTENT).hexdigest()}"
NOWHERE = "http://127.0.0.1:9/file.bin"


def archive(*addresses: str, checksum: str | None = MD5, size: int | None = len(CONTENT)) -> Archive:
    return Archive("file.bin", addresses, checksum, size)


def left(folder: Path) -> set[str]:
    return {file.name for file in folder.iterdir() if not file.name.endswith(".lock")}


def test_a_file_is_fetched_once_and_nothing_else_is_left(cache: Path) -> None:
    with served({"file.bin": CONTENT}) as site:
        file = fetch("mine", archive(site.url("file.bin")))
        assert fetch("mine", archive(site.url("file.bin"))) == file
    assert file == cache / "mine" / "file.bin"
    assert file.read_bytes() == CONTENT
    assert site.asked == [("file.bin", None)]
    assert left(file.parent) == {"file.bin"}
    assert fetch("mine", archive()) == file


@pytest.mark.parametrize("tags", [True, False])
@pytest.mark.parametrize("size", [len(CONTENT), None])
def test_a_broken_connection_is_taken_up_where_it_ended(tags: bool, size: int | None) -> None:
    with served({"file.bin": CONTENT}) as site:
        site.cuts, site.tags = [300_000, 200_000], tags
        file = fetch("mine", archive(site.url("file.bin"), size=size))
    assert file.read_bytes() == CONTENT
    assert [part for _, part in site.asked] == [None, "bytes=300000-", "bytes=500000-"]


def test_a_connection_that_is_reset_is_taken_up_as_well() -> None:
    with served({"file.bin": CONTENT}) as site:
        site.cuts, site.reset = [300_000], True
        assert fetch("mine", archive(site.url("file.bin"))).read_bytes() == CONTENT
    first, second = (part for _, part in site.asked)
    assert first is None
    assert second is not None


def test_progress_is_shown_on_a_terminal_and_nothing_elsewhere(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with served({"file.bin": CONTENT}) as site:
        fetch("mine", archive(site.url("file.bin")))
        assert capsys.readouterr() == ("", "")
        monkeypatch.setenv("FORCE_COLOR", "1")  # makes rich treat standard error as a terminal
        fetch("yours", archive(site.url("file.bin")))
    shown = capsys.readouterr()
    assert not shown.out
    assert "file.bin" in shown.err
    assert "1.0/1.0" in shown.err


def interrupt_download(site: Site, cache: Path, cut: int, **options: tuple[str, ...] | int | None) -> Path:
    """Start a download that ends after `cut` bytes; return the partial file."""
    site.cuts = [cut, 0]
    with pytest.raises(DataError, match=r"the connection ended after [\d,]+ of [\d,]+ bytes"):
        fetch("mine", archive(site.url("file.bin"), **options))  # type: ignore[arg-type]
    part = cache / "mine" / "file.bin.part"
    assert part.stat().st_size == cut
    return part


def test_an_interrupted_download_is_resumed_by_the_next_call(cache: Path) -> None:
    with served({"file.bin": CONTENT}) as site:
        interrupt_download(site, cache, 400_000)
        assert fetch("mine", archive(site.url("file.bin"))).read_bytes() == CONTENT
    assert site.asked[-1] == ("file.bin", "bytes=400000-")
    assert left(cache / "mine") == {"file.bin"}


def test_a_download_whose_last_byte_came_is_not_fetched_again(cache: Path) -> None:
    with served({"file.bin": CONTENT}) as site:
        (cache / "mine").mkdir(parents=True)
        (cache / "mine" / "file.bin.part").write_bytes(CONTENT)
        fetch("mine", archive(site.url("file.bin"), size=None))
        assert site.asked == [("file.bin", f"bytes={len(CONTENT)}-")]


def test_a_server_that_gives_no_parts_is_asked_for_the_whole(cache: Path) -> None:
    with served({"file.bin": CONTENT}) as site:
        interrupt_download(site, cache, 400_000)
        site.ranges = False
        assert fetch("mine", archive(site.url("file.bin"))).read_bytes() == CONTENT


def test_a_file_that_changed_since_is_fetched_from_the_start(cache: Path) -> None:
    with served({"file.bin": CONTENT}) as site:
        interrupt_download(site, cache, 400_000, checksum=None, size=None)
        site.files["file.bin"] = changed = CONTENT[::-1]
        assert fetch("mine", archive(site.url("file.bin"), checksum=None, size=None)).read_bytes() == changed


@pytest.mark.parametrize("stale", [b"x" * 1000, b"x" * len(CONTENT), b"x" * (len(CONTENT) + 5)])
def test_the_beginning_of_another_file_is_thrown_away(stale: bytes, cache: Path) -> None:
    (cache / "mine").mkdir(parents=True)
    (cache / "mine" / "file.bin.part").write_bytes(stale)
    with served({"file.bin": CONTENT}) as site:
        assert fetch("mine", archive(site.url("file.bin"))).read_bytes() == CONTENT
        (cache / "mine" / "file.bin").unlink()
        (cache / "mine" / "file.bin.part").write_bytes(stale)
        assert fetch("mine", archive(site.url("file.bin"), size=None)).read_bytes() == CONTENT


def test_mirrors_are_tried_in_turn_and_go_on_from_one_another(cache: Path) -> None:
    with served({"a/file.bin": CONTENT, "b/file.bin": CONTENT}) as site:
        site.cuts = [300_000, 0]
        addresses = (NOWHERE, site.url("none"), site.url("a/file.bin"), site.url("b/file.bin"))
        assert fetch("mine", archive(*addresses)).read_bytes() == CONTENT
    assert site.asked[-1] == ("b/file.bin", "bytes=300000-")


def test_a_length_that_is_not_told_is_no_obstacle() -> None:
    with served({"file.bin": CONTENT}) as site:
        site.length = False
        assert fetch("mine", archive(site.url("file.bin"))).read_bytes() == CONTENT


def test_a_wrong_checksum_is_refused_and_nothing_is_kept(cache: Path) -> None:
    with (
        served({"file.bin": CONTENT[::-1]}) as site,
        pytest.raises(DataError, match=rf"127.*file\.bin: its checksum is md5:\w+, not {MD5}"),
    ):
        fetch("mine", archive(site.url("file.bin")))
    assert left(cache / "mine") <= {"file.bin.part.origin"}


def test_a_file_of_another_size_is_refused_before_it_is_fetched(cache: Path) -> None:
    with (
        served({"file.bin": CONTENT}) as site,
        pytest.raises(DataError, match=r"the file there has 1,024,000 bytes, not 7"),
    ):
        fetch("mine", archive(site.url("file.bin"), size=7))
    assert not (cache / "mine" / "file.bin.part").exists()


def test_without_a_network_the_message_says_which_file_to_put_where(cache: Path) -> None:
    with pytest.raises(DataError) as caught:
        fetch("mine", archive(NOWHERE))
    message = str(caught.value)
    assert f"mine: file.bin is not in {cache}/mine and could not be downloaded ({NOWHERE}: " in message
    assert f"Without a network put file.bin into {cache}/mine, or give the archive or its" in message
    assert "option path (data.path), or put mine.npz into the folder $KEDGE_DATA" in message
    (cache / "mine" / "file.bin").write_bytes(CONTENT)
    assert fetch("mine", archive(NOWHERE)).read_bytes() == CONTENT


def test_a_file_in_the_cache_that_is_damaged_is_named(cache: Path) -> None:
    (cache / "mine").mkdir(parents=True)
    (cache / "mine" / "file.bin").write_bytes(CONTENT[:-1])
    with pytest.raises(
        DataError, match=r"mine/file\.bin: it has 1,023,999 bytes, not .*delete it, and it is downloaded"
    ):
        fetch("mine", archive(NOWHERE))


def test_without_a_published_checksum_the_first_copy_is_the_measure(cache: Path, tmp_path: Path) -> None:
    content = zipped(tmp_path / "a.zip", {"a": b"1"}).read_bytes()
    with served({"a.zip": content, "b.zip": b"<html>Please log in</html>"}) as site:
        file = fetch("mine", Archive("a.zip", (site.url("a.zip"),)))
        with pytest.raises(DataError, match=r"b\.zip: it is no whole zip archive"):
            fetch("mine", Archive("b.zip", (site.url("b.zip"),)))
    assert file.with_name("a.zip.sha256").read_text() == f"sha256:{hashlib.sha256(content).hexdigest()}\n"
    zipped(file, {"a": b"2"})
    with pytest.raises(DataError, match=r"a\.zip: its checksum is sha256:\w+, but it was sha256:"):
        fetch("mine", Archive("a.zip", ()))


def test_a_file_put_by_hand_is_remembered_where_none_is_published(cache: Path) -> None:
    (cache / "mine").mkdir(parents=True)
    zipped(cache / "mine" / "a.zip", {"a": b"1"})
    fetch("mine", Archive("a.zip", ()))
    assert (cache / "mine" / "a.zip.sha256").read_text().startswith("sha256:")
    fetch("mine", Archive("a.zip", ()))


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_cache_folder_without_the_right_to_write_is_named(cache: Path) -> None:
    cache.mkdir()
    cache.chmod(0o555)
    with pytest.raises(DataError, match=r"cache/mine cannot be written \(.*KEDGE_CACHE"):
        fetch("mine", archive(NOWHERE))


def test_a_cache_folder_that_cannot_be_made_is_named(cache: Path) -> None:
    cache.write_text("a file")
    with pytest.raises(DataError, match=r"cache/mine cannot be written \(.*environment variable KEDGE_CACHE"):
        fetch("mine", archive(NOWHERE))


def test_the_cache_folder_follows_xdg(monkeypatch: pytest.MonkeyPatch, cache: Path) -> None:
    assert cache_folder() == cache
    monkeypatch.delenv("KEDGE_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", "/var/tmp/mine")
    assert cache_folder() == Path("/var/tmp/mine/kedge")
    monkeypatch.setenv("XDG_CACHE_HOME", "relative, which the standard says to ignore")
    assert cache_folder() == Path.home() / ".cache/kedge"


def test_a_path_given_goes_before_everything(tmp_path: Path) -> None:
    (tmp_path / "file.bin").write_bytes(CONTENT)
    assert find_archive("mine", archive(NOWHERE), tmp_path) == tmp_path / "file.bin"
    assert find_archive("mine", archive(NOWHERE), tmp_path / "file.bin") == tmp_path / "file.bin"
    (tmp_path / "unpacked").mkdir()
    assert find_archive("mine", archive(NOWHERE), str(tmp_path / "unpacked")) == tmp_path / "unpacked"
    with pytest.raises(DataError, match=r"mine: .*/nowhere does not exist; give the path of file\.bin"):
        find_archive("mine", archive(NOWHERE), tmp_path / "nowhere")


def test_two_processes_fetch_a_file_once(cache: Path) -> None:
    """Both processes miss the file before the server answers; the lock lets one of them download it."""
    with served({"file.bin": CONTENT}) as site:
        site.wait = threading.Event()
        program = (
            # The package without its __init__, which would import torch.
            "import sys, types\n"
            "package = sys.modules['kedge'] = types.ModuleType('kedge')\n"
            f"package.__path__ = {list(kedge.__path__)!r}\n"
            "from kedge.data.download.archive import Archive, fetch\n"
            f"file = fetch('mine', {archive(site.url('file.bin'))!r})\n"
            "print(len(file.read_bytes()))"
        )
        both = [
            subprocess.Popen(
                [sys.executable, "-c", program], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
            )
            for _ in range(2)
        ]
        waiting = [process.stderr for process in both if process.stderr is not None]
        lines: list[str] = []
        readers = [threading.Thread(target=lambda s=s: lines.append(s.readline())) for s in waiting]
        for reader in readers:
            reader.start()
        end = time.monotonic() + 60
        while not (site.asked and any(lines)) and time.monotonic() < end:
            time.sleep(0.02)
        site.wait.set()
        answers = [process.communicate(timeout=60)[0].strip() for process in both]
    assert answers == [str(len(CONTENT))] * 2
    assert site.asked == [("file.bin", None)]
    assert any("another process is working in" in line for line in lines)
