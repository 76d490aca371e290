"""training.units on the command line."""

from pathlib import Path

import pytest
from tests.cli.command import SMALL, kedge

TINY = (
    "--set", "rounds=1", "--set", "training.epochs=1", "--set", "method=fedbug+fedavg",
    "--set", "data.name=synthetic", "--set", "data.samples=60", "--set", "data.classes=3",
    "--set", "data.features=[1,8,8]", "--set", "partition.name=iid", "--set", "partition.clients=3",
    "--set", "participation.per_round=2", "--set", "model.name=resnet18", "--set", "model.width=4",
    "--set", "engine.name=sequential",
)  # fmt: skip


@pytest.fixture(autouse=True)
def in_an_empty_folder(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> None:
    """Commands write to runs/NAME below the current folder, where a run of the developer's may be."""
    monkeypatch.chdir(tmp_path_factory.mktemp("here"))


def test_blocks_of_a_perceptron_are_refused_with_what_to_do(tmp_path: Path) -> None:
    answer = kedge("run", "quickstart", *SMALL, "--set", "training.units=block", "--out", tmp_path / "run")
    assert answer.code == 2
    assert "units = 'block': Sequential has no such units. It has: listed, layer." in answer.err
    assert "any module may list its own: self.units = " in answer.err
    assert not (tmp_path / "run").exists()


def test_an_unknown_granularity_is_refused() -> None:
    answer = kedge("run", "quickstart", "--set", "training.units=stage")
    assert answer.code == 2
    assert "training.units = 'stage': need 'listed', 'layer', 'module' or 'block'" in answer.err


@pytest.mark.parametrize("units", ["module", "block"])
def test_a_residual_network_runs_by_units(units: str, tmp_path: Path) -> None:
    answer = kedge("run", "quickstart", *TINY, "--set", f"training.units={units}", "--out", tmp_path / "run")
    assert answer.code == 0, answer
    assert f'units = "{units}"' in (tmp_path / "run/config.toml").read_text()


def test_schedules_are_checked_against_the_units_asked_for() -> None:
    """Vanilla needs a round for each unit below the head: 3 of 4 modules, 7 of 8 blocks."""
    for units, base in (("module", 3), ("block", 7)):
        wrong = kedge("run", "quickstart", *TINY, "--set", f"training.units={units}",
                      "--set", "method=vanilla(thaw=[0])+fedavg")  # fmt: skip
        assert f"the model has {base} base units" in wrong.err
