"""Users' networks of many kinds train right on every engine and in every precision, or raise an error."""

import pytest
import torch
from tests.engines.recorded import on_the_cpu
from tests.quick import cases, every
from tests.zoo import table, trial
from tests.zoo.modules import ZOO, has_torchvision
from tests.zoo.trial import CLIENTS, TOLERANCES, Cell, distance, reference, run_cell, train

from kedge.engines.cuda.captured import captured_stack
from kedge.running import open_engine

PLAIN = [name for name, member in ZOO.items() if not member.external]
CAPTURED = ["depthwise", "mobilenet", "convnext", "transposed", "text-cnn", "vit", "lstm"]
IMPORTED = [name for name, member in ZOO.items() if member.external]
CPU = ("fp64", "fp32", "bf16")
torchvision = pytest.mark.skipif(not has_torchvision(), reason="torchvision is not installed")
gpu = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")]


def assert_right(found: Cell) -> None:
    """Assert that the cell is right. On a CPU no cell is refused."""
    assert found.state == "right", str(found)


@pytest.mark.parametrize("precision", cases(CPU, ["fp64"]))
@pytest.mark.parametrize("engine", cases(["sequential", "stacked"], ["stacked"]))
@pytest.mark.parametrize("name", PLAIN)
def test_every_network_trains_right(name: str, engine: str, precision: str) -> None:
    assert_right(run_cell(name, engine, precision))


@pytest.mark.slow
@torchvision
@pytest.mark.parametrize("precision", CPU)
@pytest.mark.parametrize("engine", ["sequential", "stacked"])
@pytest.mark.parametrize("name", IMPORTED)
def test_networks_of_torchvision_train_right(name: str, engine: str, precision: str) -> None:
    assert_right(run_cell(name, engine, precision))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["resnet", "depthwise", "vit", "gru", "bag"])
def test_frozen_layers_and_regularisers_are_right_too(name: str) -> None:
    for engine, precision in (("stacked", "fp64"), ("sequential", "bf16"), ("stacked", "bf16")):
        assert_right(run_cell(name, engine, precision, "fedbug+feddyn"))


@pytest.mark.parametrize(
    ("name", "precision"), [("depthwise", "bf16"), ("convnext", "bf16"), ("words", "fp64")]
)
def test_the_operators_that_a_gpu_captures_are_right(
    name: str, precision: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The programs are traced operator by operator, as for a CUDA graph, and run on the CPU."""
    expected = reference(name, "fedavg")
    with on_the_cpu(trace_operators=True):
        monkeypatch.setattr(
            open_engine, "build", lambda choice, model, data, own=None: captured_stack(model, data, 0, own)
        )
        found = train(name, "fedavg", precision, "cpu", engine="stacked", compile="off")
    assert distance(found.weights, expected.weights) < TOLERANCES[precision]
    assert abs(found.loss - expected.loss) < TOLERANCES[precision] * expected.loss


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "precision"),
    [("mlp", "bf16"), ("depthwise", "bf16"), ("text-cnn", "bf16")],
)
def test_compiled_programs_are_right(name: str, precision: str) -> None:
    assert run_cell(name, "compiled", precision).state == "right"


class TestOnTheGPU:
    pytestmark = gpu

    @pytest.mark.parametrize("precision", ["fp64", "fp32", "tf32", "bf16"])
    @pytest.mark.parametrize("engine", ["sequential", "stacked"])
    @pytest.mark.parametrize("name", PLAIN)
    def test_every_network_trains_right(self, name: str, engine: str, precision: str) -> None:
        found = run_cell(name, engine, precision, device="cuda")
        assert found.state in ("right", "refused"), str(found)

    @pytest.mark.parametrize("precision", ["fp64", "bf16"])
    @pytest.mark.parametrize(
        "name", ["depthwise", "mobilenet", "convnext", "transposed", "text-cnn", "vit", "lstm"]
    )
    def test_networks_are_captured_right(self, name: str, precision: str) -> None:
        found = run_cell(name, "captured", precision, device="cuda")
        assert found.state == "right", str(found)


@pytest.mark.parametrize("name", every(4, PLAIN))
def test_a_wrong_result_would_be_seen(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without one client, or with 1.5 times the learning rate, the error is larger than any tolerance."""
    expected = reference(name, "fedavg")
    monkeypatch.setitem(ZOO, name, ZOO[name]._replace(lr=1.5 * ZOO[name].lr))
    faster = train(name, "fedavg", "fp32", "cpu", engine="sequential")
    monkeypatch.undo()
    monkeypatch.setattr(trial, "SIZES", trial.SIZES[1:])
    fewer = train(name, "fedavg", "fp32", "cpu", engine="sequential")
    for wrong in (faster, fewer):
        assert distance(wrong.weights, expected.weights) > 0.2 > TOLERANCES["bf16"]


@pytest.mark.slow
def test_a_network_that_amplifies_rounding_is_held_to_what_rounding_does_to_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Relative errors of at most 2^-10 move the update by 1 % to 5 %; errors of 0 leave it as it is."""
    effect = trial.effect_of_rounding("resnet", "fedavg", "tf32")
    assert 0.01 < effect < TOLERANCES["tf32"]
    assert trial.effect_of_rounding("resnet", "fedavg", "fp64") == 0
    monkeypatch.setitem(TOLERANCES, "tf32", effect / 4)
    rounded = train("resnet", "fedavg", "tf32", "cpu", 3, engine="sequential")
    monkeypatch.setattr(trial, "train", lambda *_, **__: rounded)
    assert run_cell("resnet", "sequential", "tf32").state == "right"
    worse = rounded._replace(weights={k: v * (1 + 1.5 * effect) for k, v in rounded.weights.items()})
    monkeypatch.setattr(trial, "train", lambda *_, **__: worse)
    assert run_cell("resnet", "sequential", "tf32").state == "wrong"


def test_a_failure_is_told_and_is_no_answer() -> None:
    def fails() -> Cell:
        raise ValueError("no\nsecond line")

    found = trial.run_safely(fails)
    assert str(found) == "failed: ValueError: no"
    assert len(trial.SIZES) == CLIENTS
    assert distance({"a": torch.full((2,), torch.nan)}, {"a": torch.ones(2)}) == float("inf")


def test_the_table_prints_every_cell_and_says_whether_all_are_right(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    words = ["--only", "mlp,words", "--engines", "stacked", "--precisions", "fp64"]
    assert table.main(words) == 0
    rows = capsys.readouterr().out.splitlines()
    assert [row.split()[:3] for row in rows[:2]] == [["mlp", "stacked", "fp64"], ["words", "stacked", "fp64"]]
    assert rows[2] == "2 right"
    if not torch.cuda.is_available():  # the captured engine is exchanged for another, and that is seen
        assert run_cell("mlp", "captured", "fp64").reason.endswith("ran instead")
    monkeypatch.setattr(table, "run_cell", lambda *_: Cell("wrong", 1.0, "1 from the reference"))
    assert table.main(words) == 1


def test_a_process_for_one_network_gets_the_other_arguments() -> None:
    words = ["--processes", "4", "--device", "cpu", "--limit=3", "--only", "mlp"]
    assert table.child_arguments(words) == ["--device", "cpu"]
