"""Ranges of arguments: declared with `Field` in a signature, checked by `checked`."""

import inspect
import math
from dataclasses import dataclass, replace
from typing import Annotated

import numpy as np
import pytest
from pydantic import Field

from kedge.core.errors import RequestError
from kedge.core.ranges import checked


@checked
def my_method(
    mu: Annotated[float, Field(ge=0, description="0 is FedAvg")] = 1.0,
    beta: Annotated[float, Field(ge=0, lt=1)] = 0.5,
    last: Annotated[int, Field(ge=1)] = 1,
    lowest: Annotated[int, Field(ge=0, le=5)] = 0,
    free: float = -1.0,
) -> float:
    """A method."""
    return mu + beta + last


@checked
@dataclass(frozen=True)
class Schedule:
    ratio: Annotated[float, Field(gt=0, le=1)]
    clip: Annotated[float, Field(gt=0)] | None = None


@checked(prefix="training.")
@dataclass(frozen=True)
class Training:
    epochs: Annotated[int, Field(ge=1)] = 1


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"mu": -1.0}, "my-method(mu=-1.0): need mu ≥ 0; 0 is FedAvg."),
        ({"mu": math.nan}, "my-method(mu=nan): need mu ≥ 0; 0 is FedAvg."),
        ({"beta": 1}, "my-method(beta=1): need 0 ≤ beta < 1."),
        ({"last": 0}, "my-method(last=0): need a whole number of at least 1."),
        ({"mu": "1"}, "my-method(mu='1'): need mu ≥ 0; 0 is FedAvg."),
        ({"mu": None}, "my-method(mu=None): need mu ≥ 0; 0 is FedAvg."),
        ({"last": 1.5}, "my-method(last=1.5): need a whole number of at least 1."),
        ({"last": True}, "my-method(last=True): need a whole number of at least 1."),
        ({"lowest": 6}, "my-method(lowest=6): need a whole number from 0 to 5."),
    ],
)
def test_an_argument_out_of_range_is_named_with_its_range(options: dict[str, float], message: str) -> None:
    with pytest.raises(RequestError) as caught:
        my_method(**options)  # type: ignore[arg-type]  # wrong on purpose
    assert str(caught.value) == message


def test_positional_arguments_and_those_in_range_are_accepted() -> None:
    assert my_method(0, 0.0, 2) == 2
    assert my_method(last=np.int64(3), free=-5) == 4.5  # type: ignore[arg-type]  # an integer of numpy
    with pytest.raises(RequestError, match=r"my-method\(mu=-2\)"):
        my_method(-2)


def test_a_call_with_wrong_arguments_raises_pythons_own_error() -> None:
    with pytest.raises(TypeError, match="unexpected keyword argument 'nu'"):
        my_method(nu=1)  # type: ignore[call-arg]  # wrong on purpose


def test_dataclasses_are_checked_when_they_are_made_and_replaced() -> None:
    assert Schedule(0.5).clip is None
    assert replace(Schedule(0.5, 1.0), clip=None).clip is None
    with pytest.raises(RequestError, match=r"^Schedule\(ratio=0\): need 0 < ratio ≤ 1\.$"):
        Schedule(0)
    with pytest.raises(RequestError, match=r"^Schedule\(clip=0\): need clip > 0\.$"):
        replace(Schedule(1), clip=0)


def test_a_prefix_makes_the_name_of_a_configuration_key() -> None:
    with pytest.raises(RequestError, match=r"^training\.epochs = 0: need a whole number of at least 1\.$"):
        Training(0)


def test_signature_and_docstring_stay() -> None:
    assert [*inspect.signature(my_method).parameters] == ["mu", "beta", "last", "lowest", "free"]
    assert inspect.getdoc(my_method) == "A method."
    assert [*inspect.signature(Schedule).parameters] == ["ratio", "clip"]


def test_help_shows_plain_types() -> None:
    assert str(inspect.signature(my_method)).startswith("(mu: float = 1.0, beta: float = 0.5, last: int = 1")
    assert str(inspect.signature(Schedule)) == "(ratio: float, clip: float | None = None) -> None"
