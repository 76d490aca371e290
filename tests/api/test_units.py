"""kedge.train(units=…): the units of a user's own network that a schedule freezes."""

import pytest
import torch
from tests.residual import Residual
from torch import nn

import kedge
from kedge.core.algorithm import Algorithm
from kedge.core.schedules import Clock, Mask
from kedge.nn.units import Granularity


def clients(*shape: int) -> list[kedge.Dataset]:
    draw = torch.Generator().manual_seed(0)
    return [kedge.Dataset(torch.randn(8, *shape, generator=draw), torch.arange(8) % 3) for _ in range(2)]


@pytest.mark.slow
@pytest.mark.parametrize(("units", "count"), [("listed", 21), ("module", 4), ("block", 8)])
def test_a_schedule_gets_the_units_of_the_granularity(units: Granularity, count: int) -> None:
    seen = set()

    def everything(clock: Clock, units: int) -> Mask:
        seen.add(units)
        return (True,) * units

    algorithm = Algorithm("mine", schedule=everything)
    module = Residual(1, 3, width=2)
    kedge.train(module, clients(1, 32, 32), method=algorithm, rounds=1, units=units, engine="sequential")
    assert seen == {count}


class Sized(nn.Sequential):
    """A network whose own `units` are widths."""

    units = (8, 3)


def test_an_attribute_that_means_something_else_can_be_passed_over() -> None:
    module = Sized(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))
    with pytest.raises(kedge.RequestError, match='something else, use units = "layer"'):
        kedge.train(module, clients(4), rounds=1)
    assert kedge.train(module, clients(4), rounds=1, units="layer").history
