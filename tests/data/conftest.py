"""Tests of data use a cache folder of their own and cannot reach other machines."""

from pathlib import Path

import pytest


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in ("http_proxy", "https_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")  # a closed port
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    monkeypatch.setenv("KEDGE_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"
