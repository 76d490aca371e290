"""If a program cannot be compiled, `auto` chooses another engine, and a named engine raises an error."""

from pathlib import Path
from typing import Any

import pytest
import torch
from tests.engines.recorded import on_the_cpu
from tests.zoo.trial import dataset
from torch import Tensor, nn

import kedge
from kedge.engines.choice import choose as auto
from kedge.engines.choice import trial
from kedge.engines.choice.choose import Choice
from kedge.engines.choice.compiling import explain_capture_errors
from kedge.engines.choice.unstackable import NotCompiled
from kedge.engines.cuda.graphs import Replayed
from kedge.running import engine_settings

CLIENTS = [dataset("mlp", size, seed) for seed, size in enumerate((16, 8))]


class Breaks(nn.Module):
    """A forward pass that torch's compiler does not take as one program."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(192, 3)

    def forward(self, x: Tensor) -> Tensor:
        torch._dynamo.graph_break()
        logits: Tensor = self.layer(x.flatten(1))
        return logits


def train(engine: Any = "auto", out: Path | None = None, **settings: Any) -> kedge.Result:
    torch.manual_seed(0)
    return kedge.train(Breaks(), CLIENTS, test=CLIENTS[0], rounds=2, engine=engine, out=out, **settings)


@pytest.fixture
def compiling_repaid(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(auto, "COMPILE_SECONDS", 0.0)
    monkeypatch.setattr(auto, "has_compiler", lambda: True)
    seconds = {"Stacked": 1.0, "Sequential": 2.0}
    monkeypatch.setattr(trial, "timed", lambda engine, *rest: seconds[type(engine).__name__])


@pytest.mark.slow
@pytest.mark.usefixtures("compiling_repaid")
def test_auto_goes_on_without_the_compiler(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    result = train(out=tmp_path / "run")
    assert [line["round"] for line in result.history] == [1, 2]
    assert (result.engine["name"], result.engine["compiled"]) == ("stacked", False)
    assert engine_settings.read_engine_settings(tmp_path / "run") == result.engine
    assert "choosing an engine that compiles nothing" in capsys.readouterr().err
    right = train("stacked", compile="off")
    assert all(torch.equal(v, right.model[k]) for k, v in result.model.items())


@pytest.mark.slow
def test_an_engine_that_was_asked_for_is_not_exchanged() -> None:
    with pytest.raises(NotCompiled, match="cannot be compiled"):  # a pack sees it by its kind
        train("stacked", compile="on")


def test_auto_goes_on_where_nothing_can_be_captured(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first choice is captured, as on a GPU, and its step cannot be traced."""
    right = train("sequential")
    first = [Choice("captured", True, 0, "a GPU")]
    choose = auto.choose
    monkeypatch.setattr(engine_settings, "choose", lambda *given: first.pop() if first else choose(*given))
    with on_the_cpu(trace_operators=True), monkeypatch.context() as patch:
        patch.setattr("kedge.engines.cuda.lanes.trace_operators", fails)
        result = train("auto")
    assert result.engine["name"] in ("sequential", "stacked")
    assert all(torch.allclose(v, right.model[k], atol=1e-6) for k, v in result.model.items())


def test_what_cannot_be_captured_names_an_engine_that_can() -> None:
    with on_the_cpu(), pytest.raises(NotCompiled, match=r"no stride\)?.*engine\.compile = 'off' can run it"):
        Replayed(fails, None)(torch.zeros(1))


def test_an_error_of_ours_or_of_memory_stays_what_it_is() -> None:
    for error in (kedge.RequestError("own"), torch.OutOfMemoryError("full"), kedge.Diverged("nan")):
        with pytest.raises(type(error)) as caught, explain_capture_errors():
            raise error
        assert caught.value is error


def fails(*_: Any) -> None:
    raise AssertionError("no stride")
