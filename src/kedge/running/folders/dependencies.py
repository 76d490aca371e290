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
    imported_with = IMPORTED_WITH.get(str(first.path) if first.module is None else place, set())
    names = [n for n in imported_with if n in sys.modules] + ([first.module] if first.module else [])
    files = {first.path: first}
    unread = [first]  # files whose imports are not followed yet
    while names or unread:
        for module_name in [prefix for name in names for prefix in prefixes(name)]:
            code = local_module(module_name, roots)
            if code and code.path not in files:
                files[code.path] = code
                unread.append(code)
        names = [*imported_names(unread.pop())] if unread else []
    return [*files.values()]


def loaded_code(module: ModuleType, name: str | None) -> Code | None:
    """The file of a loaded module; None if it is not the user's own."""
    source = source_of(module)
    return None if source is None else Code(Path(str(module.__file__)).resolve(), name, source)


def root_of(path: Path, module: str | None) -> Path:
    """The folder from which the file `path` is imported as `module`."""
    if module is None:
        return path.parent
    levels = module.count(".") + (path.name == "__init__.py")
    return path.parents[min(levels, len(path.parents) - 1)]


def local_module(name: str, roots: list[Path]) -> Code | None:
    """The file of the module `name`, loaded or not, if it is below one of the folders `roots`."""
    module = sys.modules.get(name)
    if module is not None:
        code = loaded_code(module, name)
        return code if code and any(code.path.is_relative_to(root) for root in roots) else None
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
    module = code.module or ""
    package = module if code.path.name == "__init__.py" else module.rpartition(".")[0]
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            parents = package.split(".")
            parent = ".".join(parents[: max(0, len(parents) - node.level + 1)]) if node.level else ""
            source = ".".join(part for part in (parent, node.module) if part)
            yield from (f"{source}.{alias.name}" if source else alias.name for alias in node.names)


def prefixes(name: str) -> list[str]:
    """A dotted name and its parent packages: a.b.c gives a, a.b, a.b.c."""
    parts = name.split(".")
    return [".".join(parts[: n + 1]) for n in range(len(parts))]
