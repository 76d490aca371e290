"""The user's own code is found and pickles; if it is not found, the message says what to do."""

import pickle
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from kedge.config.imports import import_method, import_object
from kedge.core.algorithm import Algorithm
from kedge.core.errors import RequestError

FILE = '''
"""A file of a user."""
from dataclasses import dataclass, replace
import neighbour
import kedge
from kedge.core.correction import Correction

@dataclass(frozen=True)
class Nothing(Correction):
    strength: float = neighbour.STRENGTH
    name = "nothing"

def mine(strength=0.5):
    return replace(kedge.fedavg(), name="mine", corrections=(Nothing(strength),))

def over(base, ratio, *more, **options):
    return base

def failing():
    raise ZeroDivisionError("no clients")

made = mine(2.0)
number = 3
'''


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The current folder, with a user's files in it; modules imported from it are removed afterwards."""
    (tmp_path / "methods_of_mine.py").write_text(FILE)
    (tmp_path / "neighbour.py").write_text("STRENGTH = 0.25\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    before = set(sys.modules)
    yield tmp_path
    for name in set(sys.modules) - before:
        del sys.modules[name]


@pytest.mark.parametrize(
    "name", ["methods_of_mine.py:mine", "./methods_of_mine.py:mine", "methods_of_mine:mine"]
)
def test_a_method_in_a_file_and_in_a_module_is_found_and_pickles(place: Path, name: str) -> None:
    method = import_method(name)
    assert isinstance(method, Algorithm)
    assert repr(method.corrections) == "(Nothing(strength=0.5),)"
    assert pickle.loads(pickle.dumps(method)) == method


def test_a_file_elsewhere_is_found_with_its_neighbours(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir("/")
    assert import_object(f"{place}/methods_of_mine.py:Nothing")().strength == 0.25


def test_a_value_is_taken_as_it_is(place: Path) -> None:
    assert import_method("methods_of_mine.py:made") is import_object("methods_of_mine.py:made")


def test_a_file_is_loaded_once_and_again_when_it_has_changed(place: Path) -> None:
    first = import_object("methods_of_mine.py:Nothing")
    assert import_object(f"{place}/methods_of_mine.py:Nothing") is first
    file = place / "methods_of_mine.py"
    file.write_text(file.read_text().replace("number = 3", "number = 4"))
    assert import_object("methods_of_mine.py:number") == 4


def test_nothing_is_written_beside_the_file(place: Path) -> None:
    import_object("methods_of_mine.py:number")
    assert not list(place.glob("__pycache__/methods_of_mine*"))


WRONG = {
    "no attribute": (
        "methods_of_mine.py:mne",
        r"has no 'mne'\. Did you mean 'mine'\? It defines: Nothing, mine",
    ),
    "no file": ("methods_of_me.py:mine", r"no such file\. Did you mean 'methods_of_mine\.py'\?"),
    "no folder": ("nowhere/a.py:mine", r"nowhere/a\.py: no such file\. Write path"),
    "no module": ("nowhere.at.all:mine", r"no module 'nowhere' is installed or in /"),
    "no submodule": ("kedge.nowhere:mine", r"no module 'kedge\.nowhere'"),
    "no name": ("methods_of_mine.py", r"the name of the object is missing\. Write path"),
    "empty name": ("methods_of_mine.py:", r"cannot read it\. Write path"),
    "no place": (":mine", r"cannot read it\. Write path"),
    "relative module": (".mine:mine", r"importing \.mine failed"),
}


@pytest.mark.parametrize("case", WRONG)
def test_what_is_not_there_is_named_with_what_to_do(place: Path, case: str) -> None:
    name, message = WRONG[case]
    with pytest.raises(RequestError, match=message) as error:
        import_object(name)
    assert str(error.value).startswith(name)


NO_METHOD = {
    "number": r"is of type int: need a kedge Algorithm, or a function",
    "over": r"needs arguments: base, ratio\. Give them defaults",
    "Nothing": r"returns a Nothing, not a kedge Algorithm\. A correction .* alone is no method",
    "failing": r"calling it failed: ZeroDivisionError: no clients",
}


@pytest.mark.parametrize("attribute", NO_METHOD)
def test_what_is_no_method_is_refused(place: Path, attribute: str) -> None:
    with pytest.raises(RequestError, match=NO_METHOD[attribute]):
        import_method(f"methods_of_mine.py:{attribute}")


BROKEN = {
    "raises": ("x = 1\ny = x / 0\n", r"failed \(line 2\): ZeroDivisionError: division by zero"),
    "syntax": ("x = = 1\n", r"SyntaxError: invalid syntax"),
    "import": ("import nowhere\n", r"ModuleNotFoundError: No module named 'nowhere'"),
    "exits": ("raise SystemExit(4)\n", r"SystemExit: 4"),
}


@pytest.mark.parametrize("case", BROKEN)
@pytest.mark.parametrize("form", ["broken_of_mine.py", "broken_of_mine"])
def test_a_file_that_cannot_be_run_is_an_error_of_the_request(place: Path, case: str, form: str) -> None:
    source, message = BROKEN[case]
    (place / "broken_of_mine.py").write_text(source)
    wanted = message.replace(r" \(line 2\)", "") if form.endswith("mine") else message
    with pytest.raises(RequestError, match=wanted):
        import_object(f"{form}:mine")
    assert not [name for name in sys.modules if "broken_of_mine" in name]
