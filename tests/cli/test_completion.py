"""Shell completion: scripts of the shells, and names without loading PyTorch."""

from pathlib import Path

import pytest
from tests.cli.command import kedge
from tests.cli.test_start import start

from kedge.algorithms import METHOD_FACTORIES, SCHEDULE_FACTORIES
from kedge.cli import completion
from kedge.cli.commands import bench
from kedge.config.document import SHIPPED
from kedge.reproduce.paper import names


def complete(*words: str) -> list[str]:
    """Words that bash offers to complete the last word."""
    typed = " ".join(("kedge", *words))
    out, loaded, _ = start(_KEDGE_COMPLETE="complete_bash", COMP_WORDS=typed, COMP_CWORD=str(len(words)))
    assert not loaded
    return out.split()


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_each_shell_gets_its_script(shell: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("typer.completion._get_shell_name", lambda: shell)
    answer = kedge("--show-completion")
    assert answer.code == 0
    assert "_KEDGE_COMPLETE" in answer.out
    assert f"complete_{shell}" in answer.out


def test_install_writes_the_script_into_the_users_home(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setattr("typer._completion_shared._get_shell_name", lambda: "bash")
    assert kedge("--install-completion").code == 0
    scripts = list(tmp_path.rglob("kedge.sh"))
    assert len(scripts) == 1
    assert "complete_bash" in scripts[0].read_text()
    assert str(scripts[0]) in (tmp_path / ".bashrc").read_text()


def test_commands_options_and_names_complete() -> None:
    assert complete("re") == ["reproduce"]
    assert complete("run", "--resu") == ["--resume"]
    assert complete("run", "quick") == ["quickstart"]
    assert complete("list", "sche") == ["schedules"]
    assert complete("run", "--engine", "st") == ["stacked"]


def test_the_last_name_of_an_expression_completes() -> None:
    assert completion.method_expressions("fedavg,scaf") == ["fedavg,scaffold"]
    assert completion.method_expressions("fedbug+scaf") == ["fedbug+scaffold"]
    assert completion.method_expressions("fedavg, fedbu") == ["fedavg, fedbug+"]
    assert completion.method_expressions("feddyn->fednt") == ["feddyn->fedntd"]
    assert "fedbug+fedbug+" not in completion.method_expressions("fedbug+fed")


def test_folders_that_kedge_made_complete(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for folder in ("runs/one", "runs/several/seed0", "runs/several", "elsewhere/two"):
        (tmp_path / folder).mkdir(parents=True, exist_ok=True)
        (tmp_path / folder / completion.MARKER).touch()
    (tmp_path / "runs/foreign").mkdir()
    monkeypatch.chdir(tmp_path)
    assert completion.run_folders("") == ["runs/one", "runs/several", "runs/several/seed0"]
    assert completion.run_folders("runs/o") == ["runs/one"]
    assert completion.run_folders("elsewhere/") == ["elsewhere/two"]
    assert completion.run_folders(f"{tmp_path}/runs/o") == [f"{tmp_path}/runs/one"]
    assert completion.run_folders("nowhere/") == []


def test_completed_names_are_those_of_the_library() -> None:
    assert completion.methods("") == sorted(METHOD_FACTORIES)
    assert set(completion.SCHEDULES) == set(SCHEDULE_FACTORIES)
    assert completion.experiments("") == sorted(path.stem for path in SHIPPED.glob("*.toml"))
    assert completion.published_tables("") == sorted([*names(), "all"])
    allowed = kedge("bench", "nothing").err.rpartition("Allowed: ")[2]
    assert set(allowed.strip().removesuffix(".").split(", ")) == set(bench.WORKLOADS)
