"""Version, changelog, citation, Makefile and commit hooks agree with each other."""

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from kedge.version import __version__

ROOT = Path(__file__).parents[1]
CHANGELOG = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
CITATION = (ROOT / "CITATION.cff").read_text(encoding="utf-8")
HEADING = re.compile(r"^## \[(\d+\.\d+\.\d+)\] - (unreleased|\d{4}-\d{2}-\d{2})$", re.MULTILINE)
SECTIONS = {"Added", "Changed", "Deprecated", "Removed", "Fixed", "Security"}


def citation(key: str) -> str:
    """The value of a top-level key of CITATION.cff."""
    found = re.search(rf'^{key}: "?(.+?)"?$', CITATION, re.MULTILINE)
    assert found, key
    return found[1]


def numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split("."))


def test_each_version_is_in_the_changelog_once_newest_first() -> None:
    headings = HEADING.findall(CHANGELOG)
    assert len(headings) == len(re.findall(r"^## ", CHANGELOG, re.MULTILINE))
    versions = [numbers(version) for version, _ in headings]
    assert versions == sorted(set(versions), reverse=True)
    assert "unreleased" not in [date for _, date in headings[1:]]


def test_the_changelog_begins_with_the_version_of_the_package() -> None:
    version, date = HEADING.findall(CHANGELOG)[0]
    base, development, _ = __version__.partition(".dev")
    assert version == base
    assert (date == "unreleased") == bool(development)


def test_the_citation_names_the_newest_release() -> None:
    released = [heading for heading in HEADING.findall(CHANGELOG) if heading[1] != "unreleased"]
    assert (citation("version"), citation("date-released")) == released[0]


def test_the_citation_has_the_keys_of_its_format() -> None:
    assert citation("cff-version") == "1.2.0"
    assert citation("title").startswith("kedge")
    assert re.search(r"^authors:\n  - name: The kedge authors$", CITATION, re.MULTILINE)
    assert citation("license") in (ROOT / "pyproject.toml").read_text()
    assert "Apache License" in (ROOT / "LICENSE").read_text()


def test_the_changelog_has_the_usual_sections_and_short_lines() -> None:
    assert set(re.findall(r"^### (.+)$", CHANGELOG, re.MULTILINE)) <= SECTIONS
    assert max(map(len, CHANGELOG.splitlines())) <= 100


def test_bare_make_lists_every_target_with_its_text() -> None:
    makefile = (ROOT / "Makefile").read_text()
    phony = re.search(r"^\.PHONY: (.+)$", makefile, re.MULTILINE)
    assert phony
    out = subprocess.run(["make", "-C", str(ROOT)], capture_output=True, text=True, check=True).stdout
    listed = dict(re.findall(r"^make (\S+) +(.+)$", out, re.MULTILINE))
    assert listed.keys() == set(phony[1].split())
    assert all(listed.values())


@pytest.mark.parametrize("hook", ["ruff", "ruff-format", "mypy"])
def test_commit_hooks_run_the_tools_of_the_environment(hook: str) -> None:
    config = (ROOT / ".pre-commit-config.yaml").read_text()
    assert re.findall(r"repo: (.+)", config) == ["local"]
    command = hook.partition("-")[0]
    assert re.search(rf"- id: {hook}\n.*\n +entry: \.venv/bin/{command} ?.*\n +language: system", config)


def test_flower_is_imported_only_by_a_federation() -> None:
    program = (
        "import sys; import kedge; kedge.train; import kedge.cli.actions.federation;"
        "import kedge.running.execute;"
        "print([name for name in ('flwr', 'cryptography', 'uvicorn') if name in sys.modules])"
    )
    out = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout
    assert out.strip() == "[]"


def test_a_bare_install_needs_neither_ray_nor_flower() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    needed = {re.split(r"[^\w-]", dependency)[0] for dependency in project["dependencies"]}
    assert needed == {
        "torch", "numpy", "safetensors", "pydantic", "filelock", "typer", "rich", "jinja2", "tomli-w",
    }  # fmt: skip
    assert {"ray", "flower", "privacy"} <= set(project["optional-dependencies"])
