"""Memory of a process: the growth at its peak, and the free memory."""

import sys
from pathlib import Path

import pytest
import torch

from kedge.bench.networks import footprint


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="needs /proc")
@pytest.mark.parametrize("kept", [True, False])
def test_the_most_that_was_held_counts_even_if_it_is_gone(kept: bool) -> None:
    before = footprint.start_watch("cpu")
    assert before
    large = torch.ones(50_000_000)  # 200 MB
    if not kept:
        del large
    assert footprint.growth("cpu", before) == pytest.approx(200e6, rel=0.1)
    again = footprint.start_watch("cpu")  # resets the peak
    assert again == pytest.approx(before + 200e6 * kept, abs=20e6)
    assert footprint.growth("cpu", again) == pytest.approx(0, abs=20e6)


@pytest.mark.slow
def test_where_nobody_tells_nothing_is_known(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("PROCESS", "RESET_PEAK", "MACHINE"):
        monkeypatch.setattr(footprint, name, tmp_path / "proc" / name)
    assert footprint.start_watch("cpu") is None
    assert footprint.growth("cpu", None) is None
    assert footprint.free_bytes("cpu") is None


@pytest.mark.parametrize(
    ("limit", "free"), [("5000000", 3_200_000), ("9000000", 4_096_000), ("max", 4_096_000), ("", 4_096_000)]
)
def test_what_is_left_is_the_machine_s_or_the_container_s(
    limit: str, free: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Cached files of a container count as free memory."""
    (tmp_path / "meminfo").write_text("MemTotal:  8000 kB\nMemAvailable:    4000 kB\n")
    if limit:
        (tmp_path / "memory.max").write_text(f"{limit}\n")
        (tmp_path / "memory.current").write_text("2500000\n")
        (tmp_path / "memory.stat").write_text("anon 1800000\ninactive_file 700000\n")
    monkeypatch.setattr(footprint, "MACHINE", tmp_path / "meminfo")
    monkeypatch.setattr(footprint, "CONTAINER", tmp_path)
    assert footprint.free_bytes("cpu") == free
    assert footprint.free_bytes("cuda") is None
