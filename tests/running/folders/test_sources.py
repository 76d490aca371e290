"""A run stores the user's own code when it starts, and refuses to resume with other code without a flag."""

import json
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.cli.command import SMALL, kedge
from torch import nn

import kedge as library
from kedge.core.errors import CheckpointError, RequestError
from kedge.running.execute import resume
from kedge.running.folders.sources import FILE, read_record

METHOD = """
from dataclasses import replace
import kedge
from kedge.core.algorithm import Algorithm
import neighbour
from package import inner

def mine(strength: float = 0.5) -> Algorithm:
    from late import NUMBER
    return replace(kedge.fedavg(), name=f"mine-{neighbour.WORD}-{inner.WORD}-{NUMBER}")
"""
HELPERS = {
    "neighbour.py": 'WORD = "a"\n',
    "package/__init__.py": "",
    "package/inner.py": "from .deep import WORD\n",
    "package/deep.py": 'WORD = "b"\n',
    "late.py": "NUMBER = 1\n",
    "unused.py": "1 / 0\n",
}
QUICK: dict[str, Any] = {
    "rounds": 2,
    "model": "mlp",
    "training.epochs": 1,
    "engine.name": "sequential",
    "checkpoint.every": 1,
}


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Change to a folder with a user's files; remove the modules it imported afterwards."""
    here = tmp_path / "here"
    for name, source in {"mine.py": METHOD, **HELPERS}.items():
        (here / name).parent.mkdir(parents=True, exist_ok=True)
        (here / name).write_text(source)
    monkeypatch.chdir(here)
    monkeypatch.setattr(sys, "path", list(sys.path))
    yield here
    for name, module in list(sys.modules.items()):
        if (getattr(module, "__file__", None) or "").startswith(str(tmp_path)):
            del sys.modules[name]


def start_run(folder: Path, method: str = "mine.py:mine", **settings: Any) -> Path:
    """A run without its last round."""
    library.run("quickstart", out=folder, progress=False, method=method, **{**QUICK, **settings})
    (folder / "model.safetensors").unlink()
    return folder


def names(run: Path) -> list[str]:
    return [json.loads(line)["method"] for line in (run / "history.jsonl").read_text().splitlines()]


def longer(run: Path, rounds: int = 3) -> None:
    """Resume the run in this folder for more rounds, which shows the code that it executes."""
    config = run / "config.toml"
    config.write_text(config.read_text().replace("rounds = 2\n", f"rounds = {rounds}\n"))


def edit(place: Path, name: str, old: str, new: str) -> None:
    source = (place / name).read_text()
    assert old in source
    (place / name).write_text(source.replace(old, new))


@pytest.mark.parametrize("method", ["mine.py:mine", "mine:mine"])
def test_a_run_stores_the_file_and_what_it_imports_from_beside_it(place: Path, method: str) -> None:
    run = start_run(place.parent / "run", method)
    record = read_record(run)
    assert record
    stored = {file.stored.removeprefix("sources/"): file for file in record.files}
    assert set(stored) == {"mine.py", *HELPERS} - {"unused.py"}
    assert {file.path for file in record.files} == {str(place / name) for name in stored}
    assert all((run / file.stored).read_bytes() == Path(file.path).read_bytes() for file in record.files)
    assert record.names == {method: "sources/mine.py"}
    assert kedge("run", "--resume", run).code == 0


def test_a_run_without_own_files_stores_nothing(place: Path) -> None:
    run = start_run(place.parent / "run", "fedavg")
    assert not (run / FILE).exists()
    assert not (run / "sources").exists()


@pytest.mark.parametrize(
    ("method", "file", "old", "new"),
    [
        ("mine.py:mine", "mine.py", "fedavg()", "fedprox(mu=0.1)"),
        ("mine.py:mine", "late.py", "1", "2"),
        ("mine:mine", "package/deep.py", '"b"', '"c"'),
    ],
)
def test_a_changed_file_is_refused_with_what_changed(
    place: Path, method: str, file: str, old: str, new: str
) -> None:
    run = start_run(place.parent / "run", method)
    before = {p: p.read_bytes() for p in run.rglob("*") if p.is_file()}
    edit(place, file, old, new)
    answer = kedge("run", "--resume", run)
    assert answer.code == 2, answer
    assert f"{place / file} has changed since {run} started" in answer.err
    assert any(line.startswith("  -") and old in line for line in answer.err.splitlines())
    assert any(line.startswith("  +") and new in line for line in answer.err.splitlines())
    assert "--accept-changed-code" in answer.err
    assert "--use-stored-code" in answer.err
    with pytest.raises(RequestError, match="has changed since"):
        resume(run)
    assert {p: p.read_bytes() for p in run.rglob("*") if p.is_file()} == before


def test_a_file_that_cannot_be_executed_any_more_is_refused_for_its_change(place: Path) -> None:
    run = start_run(place.parent / "run")
    edit(place, "mine.py", "def mine", "1 / 0\ndef mine")
    answer = kedge("run", "--resume", run)
    assert answer.code == 2
    assert "has changed since" in answer.err
    assert "ZeroDivisionError" not in answer.err


@pytest.mark.slow
def test_a_change_that_is_accepted_is_executed_and_recorded(place: Path) -> None:
    run = start_run(place.parent / "run")
    first = read_record(run)
    edit(place, "neighbour.py", '"a"', '"z"')
    longer(run)
    answer = kedge("run", "--resume", run, "--accept-changed-code")
    assert answer.code == 0, answer
    assert names(run) == ["mine-a-b-1", "mine-a-b-1", "mine-z-b-1"]
    record = read_record(run)
    assert first
    assert record
    assert [line["rounds"] for line in record.earlier] == [2]
    assert (run / "sources/neighbour.py").read_text() == 'WORD = "a"\n'
    assert (run / "sources/changed-1/neighbour.py").read_text() == 'WORD = "z"\n'
    longer(run, 4)
    (run / "model.safetensors").unlink()
    edit(place, "neighbour.py", '"z"', '"a"')
    assert kedge("run", "--resume", run).code == 2
    assert kedge("run", "--resume", run, "--use-stored-code").code == 0
    assert names(run)[2:] == ["mine-z-b-1"]


@pytest.mark.parametrize("method", ["mine.py:mine", "mine:mine"])
@pytest.mark.parametrize("what", ["gone", "changed"])
def test_stored_code_is_executed_only_when_asked_for(place: Path, method: str, what: str) -> None:
    run = start_run(place.parent / "run", method)
    longer(run)
    for file in place.rglob("*.py"):
        file.write_text("1 / 0\n") if what == "changed" else file.unlink()
    answer = kedge("run", "--resume", run)
    assert answer.code == 2, answer
    told = f"the file {place / 'mine.py'} is missing" if what == "gone" else "has changed since"
    assert told in answer.err
    assert "--use-stored-code" in answer.err
    path = list(sys.path)
    answer = kedge("run", "--resume", run, "--use-stored-code")
    assert answer.code == 0, answer
    assert names(run) == ["mine-a-b-1"] * 3
    assert sys.path == path
    assert not [*run.rglob("__pycache__")]
    assert not [m for m in sys.modules.values() if str(run) in (getattr(m, "__file__", None) or "")
                and not m.__name__.startswith("kedge_file_")]  # fmt: skip


def test_a_stored_copy_that_was_changed_is_not_executed(place: Path) -> None:
    run = start_run(place.parent / "run")
    (run / "sources/neighbour.py").write_text("1 / 0\n")
    with pytest.raises(CheckpointError, match=r"sources/neighbour\.py differs from its checksum"):
        resume(run, code="stored")
    assert kedge("run", "--resume", run).code == 0


@pytest.mark.parametrize("method", ["mine.py:mine", "mine:mine"])
def test_a_run_goes_on_from_another_folder(place: Path, method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    run = start_run(place.parent / "run", method)
    monkeypatch.chdir("/")
    assert kedge("run", "--resume", run).code == 0


def test_a_run_goes_on_when_its_folder_and_its_code_were_moved(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = start_run(place / "runs/run")
    moved = place.parent / "moved"
    place.rename(moved)
    monkeypatch.chdir(moved)
    longer(moved / "runs/run")
    assert kedge("run", "--resume", "runs/run").code == 0
    assert names(moved / run.relative_to(place)) == ["mine-a-b-1"] * 3


def test_a_run_of_version_0_1_goes_on_and_stores_the_code_of_now(
    place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = start_run(place.parent / "run")
    (run / FILE).unlink()
    with pytest.raises(RequestError, match="no copy to execute"):
        resume(run, code="stored")
    answer = kedge("run", "--resume", run)
    assert answer.code == 0
    assert (
        "kedge cannot compare mine.py:mine and resumes with the current code"
        in answer.err + capsys.readouterr().err
    )
    assert read_record(run)


@pytest.mark.slow
def test_every_run_of_several_has_its_own_code_and_all_are_compared(place: Path) -> None:
    top = place.parent / "several"
    words = ("-m", "fedavg, mine.py:mine", "--seeds", "2", "--pack", "2")
    assert kedge("run", "quickstart", *SMALL, *words, "--out", top).code == 0
    assert read_record(top)
    assert {p.parent for p in top.rglob(FILE)} == {top, *(top / "mine.py-mine").iterdir()}
    for seed in (0, 1):
        (top / f"mine.py-mine/seed{seed}/model.safetensors").unlink()
    edit(place, "late.py", "1", "2")
    answer = kedge("run", "--resume", top)
    assert answer.code == 2
    assert "late.py has changed since" in answer.err
    assert kedge("run", "--resume", top, "--accept-changed-code").code == 0
    for folder in (top, top / "mine.py-mine/seed0", top / "mine.py-mine/seed1"):
        record = read_record(folder)
        assert record
        assert len(record.earlier) == 1
        assert (folder / "sources/changed-1/late.py").read_text() == "NUMBER = 2\n"


def test_a_file_that_is_edited_meanwhile_does_not_reach_later_runs(place: Path) -> None:
    """The method adds a line to its own file whenever it is built."""
    edit(
        place,
        "mine.py",
        "    from late",
        "    with open(__file__, 'a') as f:\n        f.write('# more\\n')\n    from late",
    )
    first = (place / "mine.py").read_text()
    words = ("-m", "mine.py:mine, mine.py:mine(strength=0.6)", "--out", place.parent / "several")
    assert kedge("run", "quickstart", *SMALL, *words).code == 0
    assert len((place / "mine.py").read_text()) > len(first)
    copies = [*(place.parent / "several").rglob("sources/mine.py")]
    assert len(copies) == 3
    assert {copy.read_text() for copy in copies} == {first}


def test_train_compares_the_code_that_its_method_names(place: Path) -> None:
    data = [library.Dataset(np.eye(4, dtype=np.float32), np.arange(4)) for _ in range(2)]

    def train(rounds: int, **options: Any) -> list[str]:
        result = library.train(
            nn.Linear(4, 4), data, method="mine.py:mine", rounds=rounds, out=place.parent / "run",
            engine="sequential", progress=False, **options,
        )  # fmt: skip
        return [str(line["method"]) for line in result.history]

    assert train(1) == ["mine-a-b-1"]
    edit(place, "neighbour.py", '"a"', '"z"')
    with pytest.raises(RequestError, match=r"neighbour\.py has changed since"):
        train(2, resume=True)
    assert train(2, resume=True, code="stored") == ["mine-a-b-1"] * 2
    assert train(3, resume=True, code="changed") == ["mine-a-b-1", "mine-a-b-1", "mine-z-b-1"]
    assert train(4, resume=True)[2:] == ["mine-z-b-1"] * 2


@pytest.mark.slow
def test_a_finished_run_needs_no_code(place: Path) -> None:
    top = place.parent / "several"
    assert kedge("run", "quickstart", *SMALL, "-m", "fedavg, mine.py:mine", "--out", top).code == 0
    (place / "mine.py").unlink()
    answer = kedge("run", "--resume", top, "--json")
    assert answer.code == 0, answer
    assert len(answer.json()["runs"]) == 2


SWEEP = """
name = "grid"
rounds = 2
[data]
name = "digits"
[model]
name = "mlp"
[optimizer]
name = "sgd"
[engine]
name = "sequential"
[grid]
method = ["mine.py:mine"]
"optimizer.lr" = [0.1, 0.2]
"""


def test_a_sweep_goes_on_with_the_code_it_began_with(place: Path) -> None:
    (place / "grid.toml").write_text(SWEEP)
    top = place.parent / "sweep"
    assert kedge("sweep", "grid.toml", "--out", top).code == 0
    runs = sorted(p.parent for p in top.rglob("config.toml"))
    (runs[0] / "model.safetensors").unlink()
    for file in sorted(runs[1].rglob("*"), reverse=True):  # as if it had never started
        file.rmdir() if file.is_dir() else file.unlink()
    runs[1].rmdir()
    edit(place, "mine.py", "mine-", "other-")
    answer = kedge("sweep", "--resume", top)
    assert answer.code == 2, answer
    assert not runs[1].exists()
    assert kedge("sweep", "--resume", top, "--use-stored-code").code == 0
    assert names(runs[1]) == ["mine-a-b-1"] * 2
    record = read_record(runs[1])
    assert record
    assert record.files[0].path == str(place / "mine.py")
    assert "mine-" in (runs[1] / "sources/mine.py").read_text()


@pytest.mark.parametrize(
    ("option", "used"), [("--use-stored-code", "mine"), ("--accept-changed-code", "other")]
)
def test_the_choice_of_code_holds_where_the_first_cell_has_not_begun(
    place: Path, option: str, used: str
) -> None:
    (place / "grid.toml").write_text(SWEEP)
    top = place.parent / "sweep"
    assert kedge("sweep", "grid.toml", "--out", top).code == 0
    first = min(p.parent for p in top.rglob("config.toml"))
    shutil.rmtree(first)
    edit(place, "mine.py", "mine-", "other-")
    answer = kedge("sweep", "--resume", top, option)
    assert answer.code == 0, answer
    assert names(first) == [f"{used}-a-b-1"] * 2


def test_a_schedule_in_a_later_stage_and_a_model_are_stored_too(place: Path) -> None:
    (place / "parts.py").write_text(
        "from torch import nn\n"
        "def small(shape: tuple[int, ...], classes: int) -> nn.Module:\n"
        "    return nn.Sequential(nn.Flatten(), nn.Linear(64, classes))\n"
        "def open_all(clock, units):\n    return (True,) * units\n"
    )
    then = [{"at": 1, "method": "parts.py:open_all+fedavg"}]
    run = start_run(place.parent / "run", "fedavg", model="parts.py:small", then=then)
    record = read_record(run)
    assert record
    assert record.names == dict.fromkeys(["parts.py:small", "parts.py:open_all"], "sources/parts.py")
    assert len(record.files) == 1
    assert kedge("run", "--resume", run).code == 0


def test_an_optimizer_and_a_rule_of_one_s_own_run_and_are_stored(place: Path) -> None:
    (place / "parts.py").write_text(
        "from kedge.rules.plateau import Plateau\n"
        "from kedge.core.optimizers import SGD\n"
        "def half(lr: float = 0.2) -> SGD:\n    return SGD(lr=lr / 2)\n"
        "def soon(patience: int = 1) -> Plateau:\n    return Plateau(patience=patience)\n"
    )
    then = [{"when": "parts.py:soon", "method": "fedprox"}]
    ways = {**QUICK, "rounds": 4, "progress": False}
    own = library.run("quickstart", optimizer="parts.py:half", then=then, out=place.parent / "run", **ways)
    ours = [{"when": "plateau(patience=1)", "method": "fedprox"}]
    same = library.run("quickstart", optimizer="sgd(lr=0.1)", then=ours, **ways)
    assert own.metric("distributed.global.loss") == same.metric("distributed.global.loss")
    record = read_record(place.parent / "run")
    assert record
    assert set(record.names) == {"parts.py:half", "parts.py:soon"}


@pytest.mark.slow
def test_a_folder_with_stored_code_is_replaced_by_force(place: Path) -> None:
    run = place.parent / "run"
    for _ in range(2):
        answer = kedge("run", "quickstart", *SMALL, "--set", "method=mine.py:mine", "--force", "--out", run)
        assert answer.code == 0, answer
        edit(place, "mine.py", "mine-", "more-mine-")
    assert "more-mine-" in (run / "sources/mine.py").read_text()
    many = (*SMALL, "-m", "fedavg, mine.py:mine", "--force", "--out", place.parent / "several")
    assert kedge("run", "quickstart", *many).code == 0
    edit(place, "mine.py", "more-mine-", "mine-")
    assert kedge("run", "quickstart", *many).code == 0


@pytest.mark.slow
def test_comparing_and_plotting_execute_nothing(place: Path) -> None:
    run = start_run(place.parent / "run", measure={"drift": True})
    for file in [*place.rglob("*.py"), *run.rglob("*.py")]:
        file.write_text(f"open({str(place / 'executed')!r}, 'w')\n1 / 0\n")
    for name in [name for name in sys.modules if name.startswith(("kedge_file_", "neighbour", "package"))]:
        del sys.modules[name]
    assert kedge("compare", run).code == 0
    assert kedge("plot", run, "--out", place.parent / "figures").code == 0
    assert not (place / "executed").exists()


def test_the_flags_go_with_resume_and_exclude_each_other(place: Path) -> None:
    for option in ("--accept-changed-code", "--use-stored-code"):
        answer = kedge("run", "quickstart", option)
        assert answer.code == 2
        assert f"{option} needs --resume DIR" in answer.err
    both = kedge("run", "--resume", place, "--accept-changed-code", "--use-stored-code")
    assert both.code == 2
    assert "give one of them" in both.err
