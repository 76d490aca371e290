"""The shape of the source: who may import whom, how long a file may be, what a file may be called."""

import ast
from pathlib import Path

import pytest

import kedge

ROOT = Path(kedge.__file__).parent
FILES = sorted(p for p in ROOT.rglob("*.py"))
OUTER = {"config", "running", "reproduce", "cli", "report", "audit", "bench", "api", "exports", "__init__"}
DOMAIN = {"core", "nn", "algorithms", "rules", "models", "data", "engines", "measure"}

# What each part may import of ours, beside itself.
ALLOWED: dict[str, set[str]] = {
    "version": set(),
    "core": set(),
    "nn": {"core"},
    "algorithms": {"core"},
    "rules": {"core", "algorithms"},
    "models": {"core"},
    "data": {"core"},
    "engines": {"core", "nn", "data"},
    "measure": {"core", "data", "algorithms"},
    "config": {*DOMAIN, "version"},
    "running": {*DOMAIN, "version", "config"},
    "audit": {*DOMAIN, "config", "running", "bench", "api"},
    "bench": {*DOMAIN, "config", "running", "audit", "api"},
    "reproduce": {*DOMAIN, "config", "version", "running"},
    "report": {*DOMAIN, "config", "running", "reproduce"},
    "api": {*DOMAIN, "config", "running", "report", "audit", "bench"},
    "cli": {*DOMAIN, "config", "version", "running", "reproduce", "report", "audit", "bench", "api"},
    "__main__": {"cli"},
    "exports": {*DOMAIN, "config", "version", "running", "report", "audit", "bench", "api"},
    "__init__": {"version", "exports", "algorithms"},
}


def part(path: Path) -> str:
    """The part of the package a file belongs to: its folder, or its own name at the top."""
    inside = path.relative_to(ROOT)
    return inside.parts[0] if len(inside.parts) > 1 else inside.stem


def imported(path: Path) -> set[str]:
    """The modules of ours that a file imports anywhere, inside functions too."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import; write kedge.…"
            module = node.module or ""
            found |= {f"{module}.{alias.name}" for alias in node.names} if module == "kedge" else {module}
    return {name for name in found if name == "kedge" or name.startswith("kedge.")}


def parts_imported(path: Path) -> set[str]:
    """The parts of ours that a file imports; a name taken from the package itself is its __init__."""
    found = set()
    for name in imported(path):
        inner = name.split(".")[1] if "." in name else "__init__"
        known = (ROOT / inner).is_dir() or (ROOT / f"{inner}.py").is_file()
        found.add(inner if known else "__init__")
    return found


def test_there_is_something_to_check() -> None:
    assert {part(p) for p in FILES} >= DOMAIN | {"running", "audit"}
    assert "core" in parts_imported(ROOT / "algorithms" / "fedavg.py")
    assert "running" in parts_imported(ROOT / "audit" / "bed.py")


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(ROOT)))
def test_imports_keep_the_law(path: Path) -> None:
    own = part(path)
    assert own in ALLOWED, f"{own}: a new part of the package; say in this test what it may import"
    wrong = parts_imported(path) - ALLOWED[own] - {own}
    assert not wrong, f"{path.relative_to(ROOT)} imports {sorted(wrong)}"


def test_only_the_outer_parts_import_running() -> None:
    inner = [p for p in FILES if "running" in parts_imported(p) and part(p) not in OUTER]
    assert not inner


def test_the_law_itself_forbids_what_it_must() -> None:
    assert "algorithms" not in ALLOWED["engines"]
    assert "engines" not in ALLOWED["algorithms"]
    for outer in ("audit", "bench"):
        assert not {"cli", "report"} & ALLOWED[outer]
    assert all("running" not in ALLOWED[inner] for inner in DOMAIN)


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(ROOT)))
def test_no_file_is_long(path: Path) -> None:
    assert len(path.read_text().splitlines()) <= 300


def code_lines(path: Path) -> int:
    """Lines of code: without blank lines, comments and docstrings."""
    text = path.read_text()
    silent: set[int] = set()
    for node in ast.walk(ast.parse(text)):
        if (
            isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef)
            and ast.get_docstring(node) is not None
        ):
            first = node.body[0]
            silent |= set(range(first.lineno, (first.end_lineno or first.lineno) + 1))
    lines = enumerate(text.splitlines(), 1)
    return sum(
        bool(line.strip()) and not line.strip().startswith("#") and n not in silent for n, line in lines
    )


@pytest.mark.parametrize("path", sorted((ROOT / "algorithms").glob("[a-z]*.py")), ids=lambda p: p.stem)
def test_a_method_is_a_short_file(path: Path) -> None:
    assert code_lines(path) <= 80


def test_names_say_what_is_inside() -> None:
    vague = {"utils", "util", "common", "helpers", "helper", "misc", "base"}
    tests = Path(__file__).parent
    for top in (ROOT, tests):
        for path in top.rglob("*"):
            if "__pycache__" not in path.parts:
                assert path.stem not in vague, path


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(ROOT)))
def test_a_file_says_what_it_is(path: Path) -> None:
    text = path.read_text()
    assert not text.strip() or ast.get_docstring(ast.parse(text))
