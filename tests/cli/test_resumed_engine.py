"""--engine and --address with --resume: another cluster, or an error for a run that needs none."""

import json
from pathlib import Path

import pytest
from tests.cli.command import SMALL, kedge

from kedge.cli.actions.resumed_engine import at_address, on_engine
from kedge.config.experiment import EngineChoice, Experiment
from kedge.core.errors import RequestError
from kedge.running.folders.identity import experiment_identity
from kedge.running.requests import RunRequest

OLD, NEW = "10.0.0.1:6379", "10.0.0.2:6379"


def request(folder: Path, engine: EngineChoice) -> RunRequest:
    return RunRequest(folder, Experiment("addresses", engine=engine), "resume")


def test_a_resumed_run_trains_at_the_new_address_and_keeps_everything_else(tmp_path: Path) -> None:
    before = request(tmp_path, EngineChoice("ray", workers=3, address=OLD))
    (after,) = at_address([before], NEW)
    assert after.experiment.engine == EngineChoice("ray", workers=3, address=NEW)
    assert experiment_identity(after.experiment) == experiment_identity(before.experiment)
    assert at_address([before], "") == [before]


def test_a_run_that_was_chosen_a_cluster_at_its_start_may_move(tmp_path: Path) -> None:
    """The engine in its config may be edited; environment.json names its real engine."""
    settings = {"name": "ray", "compiled": False, "chunk": 0, "threads": 1}
    (tmp_path / "environment.json").write_text(json.dumps({"engine": settings}))
    (after,) = at_address([request(tmp_path, EngineChoice("auto"))], NEW)
    assert after.experiment.engine.address == NEW


def test_an_address_for_a_run_without_a_cluster_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RequestError, match=r"its engine is 'stacked'\. Leave --address out"):
        at_address([request(tmp_path, EngineChoice("stacked"))], NEW)


def test_the_runs_of_a_sweep_may_continue_as_tasks_or_in_one_process(tmp_path: Path) -> None:
    before = request(tmp_path, EngineChoice("stacked", threads=2))
    (after,) = on_engine([before], "ray", NEW)
    assert after.experiment.engine == EngineChoice("ray", threads=2, address=NEW)
    (back,) = on_engine([after], "sequential", "")
    assert back.experiment.engine.name == "sequential"
    with pytest.raises(RequestError, match=r"--engine = 'rya'|--engine"):
        on_engine([before], "rya", "")


def test_the_command_refuses_it_too_and_leaves_the_run_as_it_is(tmp_path: Path) -> None:
    out = tmp_path / "out"
    assert kedge("run", "quickstart", *SMALL, "--out", out, "--quiet").code == 0
    (out / "model.safetensors").unlink()
    answer = kedge("run", "--resume", out, "--address", NEW)
    assert answer.code == 2
    assert f"--address {NEW}" in answer.err
    assert "its engine is 'sequential'" in answer.err
    assert not (out / "model.safetensors").exists()
    answer = kedge("run", "--resume", out, "--engine", "stacked")
    assert answer.code == 2
    assert "keeps the engine that it started with" in answer.err
