"""Memory of a process: its peak above what it held, and what is left to it."""

import sys
from pathlib import Path

import pytest
import torch

from kedge.bench import footprint


@pytest.mark.skipif(sys.platform != "linux", reason="Linux tells of a process")
@pytest.mark.parametrize("kept", [True, False])
def test_the_most_that_was_held_counts_even_if_it_is_gone(kept: bool) -> None:
    before = footprint.watched("cpu")
    assert before
    large = torch.ones(50_000_000)  # 200 MB
    if not kept:
        del large
    assert footprint.most("cpu", before) == pytest.approx(200e6, rel=0.1)
    again = footprint.watched("cpu")  # from here on only what comes
    assert again == pytest.approx(before + 200e6 * kept, abs=20e6)
    assert footprint.most("cpu", again) == pytest.approx(0, abs=20e6)


def test_where_nobody_tells_nothing_is_known(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("PROCESS", "FORGET_PEAK", "MACHINE"):
        monkeypatch.setattr(footprint, name, tmp_path / "proc" / name)
    assert footprint.watched("cpu") is None
    assert footprint.most("cpu", None) is None
    assert footprint.free("cpu") is None


@pytest.mark.parametrize(
    ("limit", "free"), [("5000000", 3_200_000), ("9000000", 4_096_000), ("max", 4_096_000), ("", 4_096_000)]
)
def test_what_is_left_is_the_machine_s_or_the_container_s(
    limit: str, free: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a container's memory what files were read into can be had back."""
    (tmp_path / "meminfo").write_text("MemTotal:  8000 kB\nMemAvailable:    4000 kB\n")
    if limit:
        (tmp_path / "memory.max").write_text(f"{limit}\n")
        (tmp_path / "memory.current").write_text("2500000\n")
        (tmp_path / "memory.stat").write_text("anon 1800000\ninactive_file 700000\n")
    monkeypatch.setattr(footprint, "MACHINE", tmp_path / "meminfo")
    monkeypatch.setattr(footprint, "GROUP", tmp_path)
    assert footprint.free("cpu") == free
    assert footprint.free("cuda") is None
