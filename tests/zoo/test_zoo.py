"""Users' own kinds of network: on every engine and in every precision right, or refused with a reason."""

import pytest
import torch
from tests.engines.recorded import on_the_cpu
from tests.zoo import trial
from tests.zoo.modules import ZOO, has_torchvision
from tests.zoo.trial import CLIENTS, TOLERANCES, Cell, cell, distance, reference, trained

from kedge.engines.captured import Captured
from kedge.running import execute

PLAIN = [name for name, member in ZOO.items() if not member.external]
IMPORTED = [name for name, member in ZOO.items() if member.external]
CPU = ("fp64", "fp32", "bf16")
torchvision = pytest.mark.skipif(not has_torchvision(), reason="torchvision is not installed")
gpu = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")]
# What torch itself cannot do: autocast on a CPU leaves the inputs and the weights in different dtypes.
REFUSED = {("bilinear", "bf16"): "All tensors must have the same dtype"}


def check(found: Cell, name: str, precision: str) -> None:
    """Right, or refused for the reason that is known."""
    why = REFUSED.get((name, precision))
    if why is None:
        assert found.state == "right", str(found)
    else:
        assert found.state == "refused"
        assert why in found.reason


@pytest.mark.parametrize("precision", CPU)
@pytest.mark.parametrize("engine", ["sequential", "stacked"])
@pytest.mark.parametrize("name", PLAIN)
def test_every_network_trains_right(name: str, engine: str, precision: str) -> None:
    check(cell(name, engine, precision), name, precision)


@pytest.mark.slow
@torchvision
@pytest.mark.parametrize("precision", CPU)
@pytest.mark.parametrize("engine", ["sequential", "stacked"])
@pytest.mark.parametrize("name", IMPORTED)
def test_networks_of_torchvision_train_right(name: str, engine: str, precision: str) -> None:
    check(cell(name, engine, precision), name, precision)


@pytest.mark.parametrize("name", ["resnet", "depthwise", "vit", "gru", "bag"])
def test_frozen_layers_and_regularisers_are_right_too(name: str) -> None:
    for engine, precision in (("stacked", "fp64"), ("sequential", "bf16"), ("stacked", "bf16")):
        check(cell(name, engine, precision, "fedbug+feddyn"), name, precision)


@pytest.mark.parametrize(
    ("name", "precision"), [("depthwise", "bf16"), ("convnext", "bf16"), ("vit", "bf16"), ("words", "fp64")]
)
def test_the_operators_that_a_gpu_captures_are_right(
    name: str, precision: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Written down operator by operator, as for a graph, and then run on the CPU."""
    right = reference(name, "fedavg")
    with on_the_cpu(written_down=True):
        monkeypatch.setattr(
            execute, "build", lambda choice, model, data, ahead=None: Captured(model, data, 0, ahead)
        )
        found = trained(name, "fedavg", precision, "cpu", engine="stacked", compile="off")
    assert distance(found.weights, right.weights) < TOLERANCES[precision]
    assert abs(found.loss - right.loss) < TOLERANCES[precision] * right.loss


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "precision"),
    [("mlp", "bf16"), ("depthwise", "bf16"), ("convnext", "bf16"), ("vit", "fp32"), ("gru", "fp32")],
)
def test_compiled_programs_are_right(name: str, precision: str) -> None:
    assert cell(name, "compiled", precision).state == "right"


class TestOnTheGPU:
    pytestmark = gpu

    @pytest.mark.parametrize("precision", ["fp64", "fp32", "tf32", "bf16"])
    @pytest.mark.parametrize("engine", ["sequential", "stacked"])
    @pytest.mark.parametrize("name", PLAIN)
    def test_every_network_trains_right(self, name: str, engine: str, precision: str) -> None:
        found = cell(name, engine, precision, device="cuda")
        assert found.state in ("right", "refused"), str(found)

    @pytest.mark.parametrize("precision", ["fp64", "bf16"])
    @pytest.mark.parametrize("name", ["depthwise", "mobilenet", "convnext", "transposed", "vit", "lstm"])
    def test_networks_are_captured_right(self, name: str, precision: str) -> None:
        found = cell(name, "captured", precision, device="cuda")
        assert found.state == "right", str(found)


@pytest.mark.parametrize("name", PLAIN)
def test_a_wrong_result_would_be_seen(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A client left out, or a learning rate that is off by a half, is further away than rounding may be."""
    right = reference(name, "fedavg")
    monkeypatch.setitem(ZOO, name, ZOO[name]._replace(lr=1.5 * ZOO[name].lr))
    faster = trained(name, "fedavg", "fp32", "cpu", engine="sequential")
    monkeypatch.undo()
    monkeypatch.setattr(trial, "SIZES", trial.SIZES[1:])
    fewer = trained(name, "fedavg", "fp32", "cpu", engine="sequential")
    for wrong in (faster, fewer):
        assert distance(wrong.weights, right.weights) > 1.3 * TOLERANCES["bf16"]


def test_a_failure_is_told_and_is_no_answer() -> None:
    def fails() -> Cell:
        raise ValueError("no\nsecond line")

    found = trial.tried(fails)
    assert str(found) == "failed: ValueError: no"
    assert len(trial.SIZES) == CLIENTS
    assert distance({"a": torch.full((2,), torch.nan)}, {"a": torch.ones(2)}) == float("inf")
