"""The shape of the source: who may import whom, how long a file may be, what a file may be called."""

import ast
import re
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest

import kedge

ROOT = Path(kedge.__file__).parent
FILES = sorted(p for p in ROOT.rglob("*.py"))
OUTER = {"config", "running", "reproduce", "cli", "report", "audit", "bench", "api", "exports", "__init__"}
DOMAIN = {"core", "nn", "algorithms", "rules", "models", "data", "engines", "measure", "privacy"}

# What each part may import of ours, beside itself and torch_private.
ALLOWED: dict[str, set[str]] = {
    "version": set(),
    "torch_private": set(),
    "core": set(),
    "nn": {"core"},
    "algorithms": {"core"},
    "rules": {"core", "algorithms"},
    "models": {"core"},
    "data": {"core"},
    "privacy": {"core"},
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


def offenders(found: Callable[[Path], object]) -> dict[str, object]:
    """The files of the source for which `found` returns something, by name."""
    results = {path.relative_to(ROOT).as_posix(): found(path) for path in FILES}
    return {name: result for name, result in results.items() if result}


@cache
def tree_of(text: str) -> ast.Module:
    """The syntax tree of a source text."""
    return ast.parse(text)


def part(path: Path) -> str:
    """The part of the package a file belongs to: its folder, or its own name at the top."""
    inside = path.relative_to(ROOT)
    return inside.parts[0] if len(inside.parts) > 1 else inside.stem


def imported(path: Path) -> set[str]:
    """The modules of ours that a file imports anywhere, inside functions too."""
    found: set[str] = set()
    for node in ast.walk(tree_of(path.read_text())):
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
    assert "running" in parts_imported(ROOT / "audit" / "training.py")


def test_every_part_has_a_law() -> None:
    assert {part(path) for path in FILES} == set(ALLOWED), "say in ALLOWED what a new part may import"


@pytest.mark.slow
def test_imports_keep_the_law() -> None:
    def forbidden(path: Path) -> set[str]:
        return parts_imported(path) - ALLOWED[part(path)] - {part(path), "torch_private"}

    assert offenders(forbidden) == {}


def test_only_the_outer_parts_import_running() -> None:
    inner = [p for p in FILES if "running" in parts_imported(p) and part(p) not in OUTER]
    assert not inner


def test_the_law_itself_forbids_what_it_must() -> None:
    assert "algorithms" not in ALLOWED["engines"]
    assert "engines" not in ALLOWED["algorithms"]
    for outer in ("audit", "bench"):
        assert not {"cli", "report"} & ALLOWED[outer]
    assert all("running" not in ALLOWED[inner] for inner in DOMAIN)


# Names of torch.cuda for the state of the device; all others are for streams, graphs and events.
CUDA_QUERIES = {
    "empty_cache",
    "get_device_name",
    "is_available",
    "max_memory_allocated",
    "mem_get_info",
    "memory_allocated",
    "reset_peak_memory_stats",
    "synchronize",
}


@cache
def torch_names(text: str) -> set[str]:
    """The full names of everything that a source text takes from torch and Triton."""
    tree = tree_of(text)
    known: dict[str, str] = {}
    found: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                first = alias.name.split(".")[0]
                known[alias.asname or first] = alias.name if alias.asname else first
                found.add(alias.name)
        elif isinstance(node, ast.ImportFrom):
            for alias in node.names:
                known[alias.asname or alias.name] = f"{node.module}.{alias.name}"
                found.add(f"{node.module}.{alias.name}")

    def full_name(node: ast.AST) -> str | None:
        if isinstance(node, ast.Name):
            return known.get(node.id)
        if isinstance(node, ast.Attribute) and (owner := full_name(node.value)):
            return f"{owner}.{node.attr}"
        return None

    found |= {name for node in ast.walk(tree) if (name := full_name(node))}
    return {name for name in found if name.split(".")[0] in ("torch", "triton")}


def private_names(text: str) -> set[str]:
    """The private names among them; operators such as torch.ops.aten._to_copy are public."""

    def private(name: str) -> bool:
        hidden = (part.startswith("_") and not part.startswith("__") for part in name.split("."))
        return any(hidden) and not name.startswith("torch.ops.")

    return {name for name in torch_names(text) if private(name)}


def cuda_names(text: str) -> set[str]:
    """The names of Triton and of torch.cuda's streams, graphs and events among them."""

    def internal(name: str) -> bool:
        inside = name.removeprefix("torch.cuda.")
        return name.split(".")[0] == "triton" or (inside != name and inside.split(".")[0] not in CUDA_QUERIES)

    return {name for name in torch_names(text) if internal(name)}


@pytest.mark.slow
def test_private_names_of_torch_are_in_one_module() -> None:
    assert [*offenders(lambda path: private_names(path.read_text()))] == ["torch_private.py"]


GPU_ROOMS = ("nn/gpu", "engines/cuda")


def test_triton_and_cuda_streams_stay_in_their_rooms() -> None:
    rooms = {Path(name).parent.as_posix() for name in offenders(lambda path: cuda_names(path.read_text()))}
    assert rooms == set(GPU_ROOMS)


def test_flower_s_names_are_taken_from_one_module_and_the_benchmark_of_peers() -> None:
    def imports_flower(path: Path) -> bool:
        return bool(re.search(r"^\s*(?:from|import) flwr\b", path.read_text(), re.MULTILINE))

    expected = ["bench/peers/flower_app.py", "engines/flower/flwr_private.py"]
    assert sorted(offenders(imports_flower)) == expected


@pytest.mark.parametrize(
    "text",
    [
        "import torch\ntorch._dynamo.reset()",
        "import torch._inductor.config",
        "from torch._C import _functorch",
        "from torch.utils._pytree import tree_map",
        "def late():\n    from torch._guards import tracing",
        "from torch import nn\nnn.modules.batchnorm._BatchNorm",
        "import torch.nn.functional as F\nF._pad(0)",
    ],
)
def test_private_names_are_found(text: str) -> None:
    assert private_names(text)


@pytest.mark.parametrize("text", ["import torch\ntorch.__version__", "import torch\ntorch.ops.aten._to_copy"])
def test_public_names_are_not_taken_for_private_ones(text: str) -> None:
    assert not private_names(text)


@pytest.mark.parametrize(
    "text",
    [
        "import triton.language as tl",
        "from triton import jit",
        "import torch\ntorch.cuda.Stream()",
        "from torch import cuda\ncuda.graph(1)",
        "from torch.cuda import CUDAGraph",
        "import torch\ndef f(event: torch.cuda.Event) -> None: ...",
    ],
)
def test_names_of_triton_and_cuda_streams_are_found(text: str) -> None:
    assert cuda_names(text)


def test_no_file_is_long() -> None:
    assert offenders(lambda path: len(path.read_text().splitlines()) > 300) == {}


def code_lines(path: Path) -> int:
    """Lines of code: without blank lines, comments and docstrings."""
    text = path.read_text()
    silent: set[int] = set()
    for node in ast.walk(tree_of(text)):
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


def test_a_method_is_a_short_file() -> None:
    methods = [path for path in FILES if part(path) == "algorithms" and path.stem != "__init__"]
    assert len(methods) > 20
    assert {path.stem: code_lines(path) for path in methods if code_lines(path) > 80} == {}


def test_names_say_what_is_inside() -> None:
    vague = {"utils", "util", "common", "helpers", "helper", "misc", "base"}
    tests = Path(__file__).parent
    for top in (ROOT, tests):
        for path in top.rglob("*"):
            if "__pycache__" not in path.parts:
                assert path.stem not in vague, path


def test_a_file_says_what_it_is() -> None:
    def lacks_docstring(path: Path) -> bool:
        text = path.read_text()
        return bool(text.strip()) and not ast.get_docstring(tree_of(text))

    assert offenders(lacks_docstring) == {}
