"""Examples and the README's snippets run; the docs name what exists."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from kedge.algorithms import METHODS
from kedge.config.document import SHIPPED, read
from kedge.config.experiment import resolve
from kedge.config.grid import cells

ROOT = Path(__file__).parent.parent
EXAMPLES = sorted((ROOT / "examples").glob("*.py"))


def python(*words: str) -> str:
    """What a Python program prints."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.run(
        [sys.executable, "-W", "error", *words], capture_output=True, text=True, check=True, env=environment
    ).stdout


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.stem)
def test_the_example_runs(example: Path) -> None:
    assert "%" in python(str(example))


def test_the_readme_s_python_runs() -> None:
    snippets = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), flags=re.DOTALL)
    assert snippets
    for snippet in snippets:
        assert python("-c", snippet)


def test_the_readme_names_every_method() -> None:
    text = (ROOT / "README.md").read_text()
    assert all(f"`{name}`" in text for name in METHODS)


def test_shipped_experiments_resolve() -> None:
    for path in SHIPPED.glob("*.toml"):
        document = read(path)
        every = [cell.experiment for cell in cells(document)] if "grid" in document else [resolve(document)]
        assert {experiment.name for experiment in every} == {path.stem}


def test_the_architecture_page_names_every_module() -> None:
    """Folders are named, and so is every file of the layers whose files the page lists."""
    page = (ROOT / "docs/architecture.md").read_text()
    for folder in ("core", "data", "engines", "measure", "running"):
        for file in (ROOT / "src/kedge" / folder).glob("[a-z]*.py"):
            assert file.name in page, f"{folder}/{file.name}"
    for path in (ROOT / "src/kedge").iterdir():
        if path.is_dir() and path.name != "__pycache__":
            assert f"  {path.name}/" in page, path.name
