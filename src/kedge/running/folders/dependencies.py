"""The files that a user's code consists of: the file that a config names, and the local files it imports.

A local file is below the folder of the named file (for package.module: below the folder that contains the
package) or below the current folder. Installed packages, the standard library and kedge are not included.
"""

import ast
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import NamedTuple

from kedge.config.imports import IMPORTED_WITH, is_installed, load_module, source_of, split_name


class Code(NamedTuple):
    """A file of a user's code."""

    path: Path
    module: str | None  # the name it is imported by; None for a file that is named by its path
    source: bytes


def code_of(name: str) -> list[Code]:
    """The files that file.py:name or package.module:name needs, the named file first; none if installed."""
    place, _ = split_name(name)
    module = load_module(name)
    first = loaded_code(module, None if place.endswith(".py") else module.__name__)
    if first is None:
        return []
    roots = [root_of(first.path, first.module), *(f for f in [Path.cwd()] if f != f.parent)]
    brought = IMPORTED_WITH.get(str(first.path) if first.module is None else place, set())
    names = [n for n in brought if n in sys.modules] + ([first.module] if first.module else [])
    found = {first.path: first}
    waiting = [first]
    while names or waiting:
        for module_name in [part for whole in names for part in prefixes(whole)]:
            other = local_module(module_name, roots)
            if other and other.path not in found:
                found[other.path] = other
                waiting.append(other)
        names = [*imported_names(waiting.pop())] if waiting else []
    return [*found.values()]


def loaded_code(module: ModuleType, name: str | None) -> Code | None:
    """The file of a loaded module; None if it is not the user's own."""
    source = source_of(module)
    return None if source is None else Code(Path(str(module.__file__)).resolve(), name, source)


def root_of(path: Path, module: str | None) -> Path:
    """The folder from which the file `path` is imported as `module`."""
    if module is None:
        return path.parent
    above = module.count(".") + (path.name == "__init__.py")
    return path.parents[min(above, len(path.parents) - 1)]


def local_module(name: str, roots: list[Path]) -> Code | None:
    """The file of the module `name`, loaded or not, if it is below one of the folders `roots`."""
    module = sys.modules.get(name)
    if module is not None:
        found = loaded_code(module, name)
        return found if found and any(found.path.is_relative_to(root) for root in roots) else None
    inside = Path(*name.split("."))
    for root in roots:
        for path in (root / inside / "__init__.py", root / inside.with_suffix(".py")):
            if path.is_file() and not is_installed(path.resolve()):
                return Code(path.resolve(), name, path.read_bytes())
    return None


def imported_names(code: Code) -> Iterator[str]:
    """The dotted names of all modules that a file may import, also inside functions."""
    try:
        tree = ast.parse(code.source)
    except (SyntaxError, ValueError):
        return  # a file that was never loaded may be invalid
    whole = code.module or ""
    package = whole if code.path.name == "__init__.py" else whole.rpartition(".")[0]
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            parents = package.split(".")
            above = ".".join(parents[: max(0, len(parents) - node.level + 1)]) if node.level else ""
            start = ".".join(part for part in (above, node.module) if part)
            yield from (f"{start}.{alias.name}" if start else alias.name for alias in node.names)


def prefixes(name: str) -> list[str]:
    """A dotted name and its parent packages: a.b.c gives a, a.b, a.b.c."""
    parts = name.split(".")
    return [".".join(parts[: n + 1]) for n in range(len(parts))]
