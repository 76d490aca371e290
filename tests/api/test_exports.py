"""Public names of the package: loaded when first used, and found by everything that looks for them."""

import subprocess
import sys

import pytest

import kedge
from kedge import exports
from kedge.algorithms import METHOD_REGISTRY


def run_python(code: str) -> str:
    """Output of a fresh interpreter."""
    return subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=120
    ).stdout


def test_importing_the_package_does_not_load_torch() -> None:
    code = "import sys, kedge; print(kedge.__version__, 'torch' in sys.modules)"
    assert run_python(code).split() == [kedge.__version__, "False"]


@pytest.mark.slow
def test_the_first_use_of_a_public_name_loads_all_of_them() -> None:
    code = "import kedge; kedge.fedavg(); print(kedge.SGD.__name__, kedge.api.run is kedge.run)"
    assert run_python(code).split() == ["SGD", "True"]


@pytest.mark.slow
def test_a_star_import_gives_every_public_name() -> None:
    code = "from kedge import *; import kedge; print(set(kedge.__all__) <= set(globals()))"
    assert run_python(code).split() == ["True"]


def test_public_names_are_those_of_the_exports_and_every_method() -> None:
    public = exports.public_names()
    assert list(public) == kedge.__all__
    assert all(getattr(kedge, name) is value for name, value in public.items())
    assert set(public) <= set(dir(kedge))
    assert {name.replace("-", "_") for name in METHOD_REGISTRY} <= set(public)


def test_an_author_of_a_method_finds_every_type_in_the_package() -> None:
    names = {"Correction", "Algorithm", "Stage", "LocalTraining", "Step", "End", "Cohort", "tree", "Output"}
    assert names <= set(exports.__all__)


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="module 'kedge' has no attribute 'fedavgg'"):
        kedge.fedavgg  # noqa: B018
