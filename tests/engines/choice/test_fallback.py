"""Operators that vmap computes client by client: kedge reports them, and torch's warnings are hidden."""

import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.zoo.modules import Words, module_of
from tests.zoo.trial import dataset
from torch import Tensor, nn
from torch.func import vmap

import kedge
from kedge.core.algorithm import LocalTraining, Stage
from kedge.core.optimizers import SGD
from kedge.data.federation import federation_from_datasets
from kedge.engines.choice import choose as auto
from kedge.engines.choice import trial
from kedge.engines.choice.choose import Choice, EngineOptions, choose
from kedge.engines.choice.fallback import collect_fallback_operators
from kedge.engines.choice.trial import Work
from kedge.engines.sequential import Sequential
from kedge.engines.stack.stacked import Stacked
from kedge.nn.from_module import from_module

CLIENTS = [dataset("bag", size, seed) for seed, size in enumerate((16, 12, 8))]
FILE = """
from torch import nn

class Net(nn.Module):
    def __init__(self, shape, classes):
        super().__init__()
        self.left, self.right = nn.Linear(64, 5), nn.Linear(64, 4)
        self.both = nn.Bilinear(5, 4, classes)

    def forward(self, x):
        return self.both(self.left(x.flatten(1)), self.right(x.flatten(1)))
"""


class Warns(nn.Module):
    """A user's module that warns."""

    def __init__(self) -> None:
        super().__init__()
        self.words = Words(bag=True)

    def forward(self, x: Tensor) -> Tensor:
        warnings.warn("mind the words", stacklevel=1)
        logits: Tensor = self.words(x)
        return logits


def chosen(module: nn.Module, rounds: int, said: list[str], **settings: Any) -> Choice:
    stage = Stage(kedge.fedavg(), rounds, LocalTraining(1, 8, SGD()))
    model = from_module(module)
    work = Work(model, federation_from_datasets(CLIENTS, None), stage, 3, rounds)
    return choose(work, EngineOptions(**settings), said.append)


@pytest.mark.parametrize("engine", ["auto", "stacked"])
def test_torch_says_nothing_of_its_fallback(engine: Any, capfd: pytest.CaptureFixture[str]) -> None:
    """With warnings as errors, as in all of these tests."""
    kedge.train(module_of("bag"), CLIENTS, test=CLIENTS[0], rounds=1, engine=engine, compile="off")
    assert "Warning" not in capfd.readouterr().err


@pytest.mark.slow
def test_the_command_line_says_it_in_its_own_words(tmp_path: Path) -> None:
    (tmp_path / "net.py").write_text(FILE)
    words = ["run", "quickstart", "--out", "run", "--set", "rounds=1", "--set", "training.epochs=1",
             "--set", "model.name=net.py:Net", "--engine", "auto"]  # fmt: skip
    ran = subprocess.run(
        [sys.executable, "-W", "always", "-m", "kedge", *words], cwd=tmp_path, capture_output=True, text=True
    )
    assert ran.returncode == 0, ran.stderr
    assert "Warning" not in ran.stderr + ran.stdout
    assert "torch's vmap computes aten::trilinear, aten::bilinear client" in ran.stderr


def test_what_a_users_module_warns_of_is_shown() -> None:
    with pytest.warns(UserWarning, match="mind the words") as caught:
        kedge.train(Warns(), CLIENTS, rounds=1, engine="auto", compile="off")
    assert {str(one.message) for one in caught} == {"mind the words"}


def test_a_users_own_vmap_warns_again_after_a_run() -> None:
    kedge.train(module_of("bag"), CLIENTS, rounds=1, engine="stacked", compile="off")
    layer = nn.EmbeddingBag(4, 2)
    with pytest.warns(UserWarning, match="performance drop"):
        vmap(lambda own: torch.func.functional_call(layer, own, (torch.zeros(1, 2).long(),)))(
            {"weight": torch.zeros(2, 4, 2)}
        )


def test_auto_names_the_operators_and_compiles_none_of_them(monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []
    found = chosen(module_of("bag"), 1, said)
    assert said == ["torch's vmap computes aten::embedding_bag client by client"]

    def slow(faster: type) -> Any:
        def seconds(engine: Any, *rest: Any) -> float:
            measured(engine, *rest)
            return 1e3 if isinstance(engine, faster) else 2e3

        return seconds

    measured = trial.timed
    monkeypatch.setattr(auto, "has_compiler", lambda: True)
    monkeypatch.setattr(trial, "timed", slow(Stacked))
    assert not chosen(module_of("bag"), 10**6, []).compiled
    assert chosen(module_of("words"), 10**6, []).compiled
    monkeypatch.setattr(trial, "timed", slow(Sequential))
    found = chosen(module_of("bag"), 1, [])
    assert found.name == "sequential"
    assert found.reason.endswith("aten::embedding_bag client by client")


def test_other_warnings_of_a_trial_are_passed_on() -> None:
    with pytest.warns(UserWarning, match="mind the words"), collect_fallback_operators() as found:
        warnings.warn("mind the words", stacklevel=1)
    assert found == []
