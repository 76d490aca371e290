"""Find and load the user's own code, named `package.module:attribute` or `path/to/file.py:attribute`."""

import hashlib
import importlib
import inspect
import sys
import sysconfig
import traceback
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from types import MappingProxyType, ModuleType
from typing import Any, NamedTuple

from kedge.core.algorithm import Algorithm
from kedge.core.errors import RequestError, nearest

FORMS = "Write path/to/file.py:name or package.module:name."


class Pin(NamedTuple):
    """The file and source that a name refers to, independent of the current folder and later changes."""

    path: Path
    root: Path  # the folder in sys.path from which the file and its own imports are loaded
    source: bytes


NO_PINS: Mapping[str, Pin] = MappingProxyType({})
PINNED = ContextVar("pinned", default=NO_PINS)  # name -> pin; set by resumed_code.py
LOADED_FROM = "__kedge_source__"  # attribute of a module: its spec and source at the time of loading
IMPORTED_WITH: dict[str, set[str]] = {}  # file or module of a user -> modules imported while loading it

INSTALLED = frozenset({"site-packages", "dist-packages"})
KEDGE_AND_PYTHON = tuple(
    Path(folder).resolve()
    for folder in (
        Path(__file__).parent.parent,
        sysconfig.get_path("stdlib"),
        sysconfig.get_path("platstdlib"),
    )
)


def import_object(name: str) -> Any:
    """The object with this name; its file or module is loaded once."""
    location, attribute = split_name(name)
    module = load_module(name)
    if not hasattr(module, attribute):
        known = [k for k, v in vars(module).items() if not k.startswith("_") and not inspect.ismodule(v)]
        defined = [k for k in known if getattr(getattr(module, k), "__module__", None) == module.__name__]
        raise RequestError(
            f"{name}: {location} has no {attribute!r}.{nearest(attribute, known)} "
            f"It defines: {', '.join(defined) or 'nothing'}."
        )
    return getattr(module, attribute)


def import_method(name: str) -> Algorithm:
    """The algorithm with this name, or the algorithm that the factory with this name returns."""
    found = import_object(name)
    if isinstance(found, Algorithm):
        return found
    if not callable(found):
        raise RequestError(
            f"{name} is of type {type(found).__name__}: need a kedge Algorithm, or a function that returns "
            "an Algorithm and whose arguments all have defaults."
        )
    algorithm = call_factory(name, found)
    if not isinstance(algorithm, Algorithm):
        raise RequestError(
            f"{name} returns a {type(algorithm).__name__}, not a kedge Algorithm. A correction or a schedule "
            "alone is no method: return dataclasses.replace(kedge.fedavg(), name=…, corrections=(…,))."
        )
    return algorithm


def call_factory(name: str, factory: Any) -> Any:
    """Call a factory without arguments, and return its result."""
    try:
        parameters = inspect.signature(factory).parameters.values()
    except (TypeError, ValueError) as error:
        raise RequestError(f"{name}: its arguments cannot be read ({error}). Name a function.") from error
    required = [
        p.name for p in parameters if p.default is p.empty and p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)
    ]
    if required:
        raise RequestError(
            f"{name} needs arguments: {', '.join(required)}. Give them defaults, or name a function without "
            "arguments that calls it."
        )
    with report_failure(name, "calling it"):
        return factory()


def load_module(name: str) -> ModuleType:
    """Import the module, or run the file, that `name` begins with."""
    location, _ = split_name(name)
    pin = PINNED.get().get(name)
    if not location.endswith(".py"):
        add_to_path(pin.root if pin else Path.cwd())
        with report_failure(name, f"importing {location}", module=location), record_imports(location):
            return importlib.import_module(location)
    if pin:
        return load_file(name, pin.path, pin.source)
    path = Path(location).expanduser()
    if not path.is_file():
        wrong = "it is a folder" if path.is_dir() else "no such file"
        near = nearest(path.name, [p.name for p in path.parent.glob("*.py")]) if path.parent.is_dir() else ""
        raise RequestError(f"{name}: {path}: {wrong}.{near} {FORMS}")
    return load_file(name, path.resolve(), path.read_bytes())


def split_name(name: str) -> tuple[str, str]:
    """The file or module in `name`, and the attribute."""
    location, _, attribute = name.rpartition(":")
    if not location or not attribute.isidentifier():
        missing = "the name of the object is missing" if name.endswith(".py") else "cannot read it"
        raise RequestError(f"{name}: {missing}. {FORMS}")
    return location, attribute


def load_file(name: str, path: Path, source: bytes) -> ModuleType:
    """Run a file as a module. Its name depends on path and content, so that its classes pickle."""
    digest = hashlib.sha256(bytes(path) + b"\0" + source).hexdigest()[:12]
    module_name = f"kedge_file_{path.stem}_{digest}"
    if module_name in sys.modules:
        return sys.modules[module_name]
    add_to_path(path.parent)
    module = ModuleType(module_name)
    module.__file__ = str(path)
    sys.modules[module_name] = module  # before it runs: dataclasses look up their module
    try:
        with report_failure(name, f"running {path}", path), record_imports(str(path)):
            exec(compile(source, str(path), "exec"), module.__dict__)
    except BaseException:
        del sys.modules[module_name]
        raise
    setattr(module, LOADED_FROM, (None, source))
    return module


@contextmanager
def record_imports(location: str) -> Iterator[None]:
    """Record the modules that are imported in this context, and their sources."""
    before = set(sys.modules)
    yield
    new = set(sys.modules) - before
    IMPORTED_WITH.setdefault(location, set()).update(new)
    for module in (sys.modules[name] for name in new):
        if isinstance(module, ModuleType):
            source_of(module)


def source_of(module: ModuleType) -> bytes | None:
    """The source code of a module when it was loaded; None if the file is not the user's own."""
    spec, file = getattr(module, "__spec__", None), getattr(module, "__file__", None)
    loaded: tuple[object, bytes] | None = vars(module).get(LOADED_FROM)
    if loaded is None or loaded[0] is not spec:  # importlib.reload makes a new spec
        path = Path(file) if isinstance(file, str) else None
        if path is None or path.suffix != ".py" or not path.is_file() or is_installed(path.resolve()):
            return None
        loaded = (spec, path.read_bytes())
        setattr(module, LOADED_FROM, loaded)
    return loaded[1]


def user_modules() -> list[ModuleType]:
    """The imported modules whose source is the user's own."""
    return [module for module in list(sys.modules.values()) if LOADED_FROM in getattr(module, "__dict__", ())]


def is_installed(path: Path) -> bool:
    """Whether a file belongs to an installed package, to Python or to kedge."""
    return bool(INSTALLED & set(path.parts)) or any(
        path.is_relative_to(folder) for folder in KEDGE_AND_PYTHON
    )


def add_to_path(folder: Path) -> None:
    """Add the folder to sys.path, as Python does for the folder of a script."""
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))


@contextmanager
def report_failure(
    name: str, action: str, path: Path | None = None, module: str | None = None
) -> Iterator[None]:
    """In this context, any exception of the user's code becomes a RequestError with the line of the error.

    `action` describes the step for the message. If `module` is not installed, the message says so.
    """
    try:
        yield
    except (Exception, SystemExit) as error:
        if module and isinstance(error, ModuleNotFoundError) and f"{module}.".startswith(f"{error.name}."):
            raise RequestError(
                f"{name}: no module {error.name!r} is installed or in {Path.cwd()}. {FORMS}"
            ) from error
        frames = traceback.extract_tb(error.__traceback__)
        lines = [frame.lineno for frame in frames if path and frame.filename == str(path)]
        where = f" (line {lines[-1]})" if lines else ""
        raise RequestError(
            f"{name}: {action} failed{where}: {type(error).__name__}: {error}. "
            "Correct it; --debug prints the traceback."
        ) from error
