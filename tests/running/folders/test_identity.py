"""A run resumes only with the settings that it started with; the error names each key that differs."""

import functools
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.cli.command import kedge as command
from tests.golden.write_folders import document
from tests.running.short_runs import experiment
from torch import nn

import kedge
from kedge.config.experiment import resolve
from kedge.config.imports import import_object
from kedge.core.algorithm import Algorithm
from kedge.core.errors import CheckpointError, RequestError
from kedge.core.losses import cross_entropy
from kedge.core.schedules import all_units
from kedge.running.execute import execute, resume, run_is_finished
from kedge.running.folders.identity import differences, digest_in, experiment_identity, plain_entries
from kedge.running.folders.marker import read_marker
from kedge.running.progress import Interrupted, Observer

GOLDEN = Path(__file__).parents[2] / "golden/v0.1"


def stop_after(rounds: int) -> Observer:
    done: list[int] = []

    def stop() -> bool:
        done.append(1)
        return len(done) == rounds

    return Observer(stop=stop)


def start_run(folder: Path, **settings: Any) -> Path:
    """A run of six rounds, stopped after the second."""
    with pytest.raises(Interrupted):
        execute(resolve(document(**settings)), folder, stop_after(2))
    return folder


def everything(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}


def edit(folder: Path, old: str, new: str) -> None:
    config = folder / "config.toml"
    text = config.read_text()
    assert text.count(old) == 1, text
    config.write_text(text.replace(old, new))


@pytest.fixture(scope="module")
def stopped(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return start_run(tmp_path_factory.mktemp("stopped") / "run", method="feddyn(alpha=0.1) -> fedavg@0.5")


@pytest.mark.parametrize(
    ("old", "new", "named"),
    [
        ("rounds = 6\nseed = 0", "rounds = 6\nseed = 1", "seed was 0, and is 1 now"),
        ("lr = 0.1", "lr = 0.2", "optimizer.lr was 0.1, and is 0.2 now"),
        ("hidden = [\n    5,\n]", "hidden = [6, 7]", "model.hidden was [5], and is [6, 7] now"),
        ('precision = "fp64"', 'precision = "fp32"', 'engine.precision was "fp64", and is "fp32" now'),
        ("at = 0.5", "at = 0.7", "then.0.at was 3, and is 4 now"),
        ("rounds = 6", "rounds = 8", "then.0.at was 3, and is 4 now"),
        ("every = 1", "every = 2", "evaluation.every was 1, and is 2 now"),
    ],
)
def test_who_edits_the_config_of_a_run_is_told_what_differs(
    old: str, new: str, named: str, stopped: Path, tmp_path: Path
) -> None:
    shutil.copytree(stopped, tmp_path / "run")
    edit(tmp_path / "run", old, new)
    before = everything(tmp_path / "run")
    answer = command("run", "--resume", tmp_path / "run")
    assert answer.code == 2
    assert f"cannot resume, because it started with other settings: {named}. Undo the changes" in answer.err
    assert everything(tmp_path / "run") == before


def test_another_method_is_one_difference_not_twenty(stopped: Path, tmp_path: Path) -> None:
    shutil.copytree(stopped, tmp_path / "run")
    edit(tmp_path / "run", 'name = "feddyn"\nalpha = 0.1\nscaling = "uniform"', 'name = "fedprox"\nmu = 0.1')
    with pytest.raises(
        RequestError, match=r'settings: method.name was "feddyn", and is "fedprox" now\. Undo'
    ):
        resume(tmp_path / "run")


def test_what_does_not_decide_numbers_may_be_edited(tmp_path: Path) -> None:
    folder = start_run(tmp_path / "run")
    edit(folder, "rounds = 6", "rounds = 3")
    edit(folder, 'name = "quickstart"', 'name = "other"')
    edit(folder, "[checkpoint]\nevery = 2", "[checkpoint]\nevery = 1")
    edit(folder, "chunk = 0", "chunk = 2")
    assert command("run", "--resume", folder, "--quiet").code == 0
    assert run_is_finished(folder)


def test_a_file_of_one_s_own_may_move(tmp_path: Path) -> None:
    table = {"name": "/here/mine.py:method", "mu": 0.1}
    moved = {"name": "C:\\there\\mine.py:method", "mu": 0.1}
    first, second = (replace(experiment(), method=method) for method in (table, moved))
    assert experiment_identity(first) == experiment_identity(second)
    assert experiment_identity(first)["method.name"] == "mine.py:method"


def test_a_checkpoint_of_another_run_is_passed_over(tmp_path: Path) -> None:
    """A process may still write a checkpoint after --force has replaced its folder by another run."""
    mine, other = start_run(tmp_path / "mine"), start_run(tmp_path / "other", seed=1)
    assert digest_in(mine) != digest_in(other)
    shutil.copytree(other / "checkpoint/000002", mine / "checkpoint/000009")
    whole = tmp_path / "whole"
    execute(resolve(document()), whole)
    answer = command("run", "--resume", mine)
    assert answer.code == 0, answer.err
    assert "000009 does not fit: it belongs to another run, with other settings. It is skipped." in answer.err
    assert (mine / "model.safetensors").read_bytes() == (whole / "model.safetensors").read_bytes()
    only = start_run(tmp_path / "only")
    shutil.rmtree(only / "checkpoint")
    shutil.copytree(other / "checkpoint", only / "checkpoint")
    answer = command("run", "--resume", only)
    assert answer.code == 1
    assert f"no checkpoint in {only}/checkpoint fits this run" in answer.err


def test_later_checkpoints_of_another_run_do_not_push_out_those_that_are_written(tmp_path: Path) -> None:
    mine, other = start_run(tmp_path / "mine"), start_run(tmp_path / "other", seed=1)
    for name in ("000008", "000009"):
        shutil.copytree(other / "checkpoint/000002", mine / "checkpoint" / name)
    resume(mine)
    assert "000006" in {path.name for path in (mine / "checkpoint").iterdir()}


def test_a_run_whose_folder_was_removed_does_not_write_into_the_next_one(tmp_path: Path) -> None:
    """The folder of a run is removed while it trains, and another run starts in it."""
    folder, seen = tmp_path / "run", []

    def line(line: dict[str, Any]) -> None:
        if line["round"] == 3:
            shutil.rmtree(folder)
            start_run(folder, seed=1)
            seen.append(everything(folder))

    with pytest.raises(CheckpointError, match=r"history\.jsonl was removed or replaced during this run"):
        execute(resolve(document()), folder, Observer(line=line))
    assert [everything(folder)] == seen


def test_a_run_in_the_folder_of_several_is_the_one_that_is_listed(tmp_path: Path) -> None:
    """Also in a folder of version 0.1: its list has each run's config."""
    top = tmp_path / "several"
    shutil.copytree(GOLDEN / "several", top)
    edit(top / "scaffold", "lr = 0.1", "lr = 0.3")
    answer = command("run", "--resume", top)
    assert answer.code == 2
    assert f"the run in {top}/scaffold is not the one that is listed for this folder" in answer.err
    assert "optimizer.lr was 0.1, and is 0.3 now" in answer.err


# kedge.train


def clients(seed: int = 0, sizes: tuple[int, ...] = (12, 9, 15)) -> list[kedge.Dataset]:
    draw = torch.Generator().manual_seed(seed)
    return [
        kedge.Dataset(torch.randn(n, 4, generator=draw), torch.randint(0, 3, (n,), generator=draw))
        for n in sizes
    ]


def network(width: int = 5, last: bool = True) -> nn.Sequential:
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(4, width), nn.Tanh(), nn.Linear(width, 3))
    module[2].weight.requires_grad_(last)
    return module


def relu() -> nn.Sequential:
    return nn.Sequential(nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, 3))


CALL: dict[str, Any] = {
    "module": network(),
    "clients": clients(),
    "test": clients(9, (8,))[0],
    "method": kedge.feddyn(alpha=0.1),
    "rounds": 2,
    "per_round": 2,
    "batch": 5,
    "optimizer": kedge.SGD(lr=0.1),
    "engine": "sequential",
}


def train(out: Path, **changed: Any) -> kedge.Result:
    settings = CALL | changed
    return kedge.train(settings.pop("module"), settings.pop("clients"), out=out, **settings)


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("trained") / "run"
    train(folder)
    return folder


@pytest.mark.parametrize(
    ("changed", "named"),
    [
        ({"seed": 1}, "seed was 0, and is 1 now"),
        ({"clients": clients(1)}, "data.samples was \"36×4 float32, sha256"),
        ({"clients": clients(0, (12, 15, 9))}, "data.held was"),
        ({"clients": clients()[:2]}, "clients was 3, and is 2 now"),
        ({"test": clients(8, (8,))[0]}, "data.test.samples was"),
        ({"test": None}, "and is null now"),
        ({"local_tests": clients()}, "data.local_tests was"),
        ({"optimizer": kedge.SGD(lr=0.2)}, "optimizer.lr was 0.1, and is 0.2 now"),
        ({"optimizer": kedge.Adam()}, 'optimizer was "kedge:SGD", and is "kedge:Adam" now'),
        ({"method": kedge.feddyn(alpha=0.2)}, "method.corrections.0.alpha was 0.1, and is 0.2 now"),
        ({"method": kedge.scaffold()}, 'method.name was "feddyn", and is "scaffold" now'),
        ({"method": kedge.fedavg()}, 'method.name was "feddyn", and is "fedavg" now'),
        ({"method": "fedbug(ratio=0.4)+feddyn(alpha=0.1)"}, "method.schedule was"),
        ({"module": network(6)}, 'module.0.weight was "5×4 float32", and is "6×4 float32" now'),
        ({"module": network(last=False)}, 'module.2.weight was "3×5 float32", and is "3×5 float32, frozen"'),
        ({"module": relu()}, 'module.text was "(1): Tanh()", and is "(1): ReLU()" now'),
        ({"batch": 6}, "batch was 5, and is 6 now"),
        ({"epochs": 2}, "epochs was 1, and is 2 now"),
        ({"per_round": 3}, "participation.per_round was 2, and is 3 now"),
        ({"precision": "fp64"}, 'precision was "fp32", and is "fp64" now'),
        ({"statistics": "local"}, 'statistics was "shared", and is "local" now'),
        ({"all": True}, "all was false, and is true now"),
        ({"measure": kedge.Measure(drift=True)}, "measure.drift was false, and is true now"),
        ({"evaluate_every": 2}, "evaluate_every was 1, and is 2 now"),
    ],
)  # fmt: skip
def test_another_call_of_train_is_told_what_differs(
    changed: dict[str, Any], named: str, trained: Path, tmp_path: Path
) -> None:
    shutil.copytree(trained, tmp_path / "run")
    before = everything(tmp_path / "run")
    with pytest.raises(RequestError, match="started with other settings") as raised:
        train(tmp_path / "run", resume=True, rounds=3, **changed)
    assert named in str(raised.value)
    assert "Call kedge.train with the arguments of the first call" in str(raised.value)
    assert not re.search("[0-9a-f]{13}", str(raised.value).replace(str(tmp_path), ""))  # digests are cut
    assert everything(tmp_path / "run") == before


def test_the_same_call_goes_on_with_other_weights_longer_and_on_another_engine(tmp_path: Path) -> None:
    train(tmp_path / "run")
    module = network()
    with torch.no_grad():
        next(module.parameters()).zero_()
    result = train(tmp_path / "run", module=module, rounds=3, resume=True, engine="stacked", compile="off")
    whole = train(tmp_path / "whole", rounds=3)
    assert len(result.history) == 3
    assert all(torch.equal(v, whole.model[k]) for k, v in result.model.items())


def test_runs_of_the_command_line_and_of_train_are_not_mixed(trained: Path, tmp_path: Path) -> None:
    shutil.copytree(trained, tmp_path / "run")
    (tmp_path / "run/model.safetensors").unlink()
    answer = command("run", "--resume", tmp_path / "run")
    assert answer.code == 2
    assert "make the same call with resume=True" in answer.err
    start_run(tmp_path / "other")
    with pytest.raises(RequestError, match=r'call was "kedge run", and is "kedge\.train" now'):
        train(tmp_path / "other", resume=True)
    (tmp_path / "empty").mkdir()
    with pytest.raises(RequestError, match="is not the folder of a run"):
        train(tmp_path / "empty", resume=True)


@pytest.mark.parametrize(
    ("changed", "named"),
    [
        ({"seed": 1}, "seed was 0, and is 1 now"),
        ({"clients": clients()[:2]}, "clients was 3, and is 2 now"),
        ({"module": nn.Linear(4, 3)}, 'module was "Sequential", and is "Linear" now'),
    ],
)
def test_a_run_of_train_of_version_0_1_is_compared_as_far_as_it_says(
    changed: dict[str, Any], named: str, tmp_path: Path
) -> None:
    shutil.copytree(GOLDEN / "train", tmp_path / "run")
    with pytest.raises(RequestError) as raised:
        train(tmp_path / "run", resume=True, rounds=6, **changed)
    assert named in str(raised.value)


def test_another_method_in_a_folder_of_version_0_1_is_no_keyerror(tmp_path: Path) -> None:
    shutil.copytree(GOLDEN / "train", tmp_path / "run")
    with pytest.raises(CheckpointError, match="is of another method than scaffold: it has no control/c"):
        train(tmp_path / "run", resume=True, rounds=6, precision="fp64", method=kedge.scaffold())


# Descriptions


@dataclass(frozen=True)
class Mine:
    rate: float = 0.5
    inner: Any = None


class Plain:
    def __init__(self, rate: float) -> None:
        self.rate, self._memo = rate, {"calls": 3}

    def loss(self) -> None: ...


def loss_with_memo(rate: float) -> Callable[[], float]:
    memo: list[float] = []

    def loss() -> float:
        memo.append(rate)
        return rate

    return loss


HERE = __name__


@pytest.mark.parametrize(
    ("value", "wanted"),
    [
        (cross_entropy, {"k": "kedge:cross_entropy"}),
        (Mine(0.25), {"k": f"{HERE}:Mine", "k.rate": 0.25, "k.inner": None}),
        (Mine, {"k": f"{HERE}:Mine"}),
        (Plain(2.0), {"k": f"{HERE}:Plain", "k.rate": 2.0}),
        (Plain(2.0).loss, {"k": f"{HERE}:Plain.loss", "k.self": f"{HERE}:Plain", "k.self.rate": 2.0}),
        (loss_with_memo(0.5), {"k": f"{HERE}:loss_with_memo.<locals>.loss", "k.rate": 0.5}),
        (lambda x, y=3: x, {"k": f"{HERE}:<lambda>", "k.defaults": [3]}),
        (functools.partial(loss_with_memo, rate=2), {"k": "functools.partial", "k.rate": 2,
                                                     "k.of": f"{HERE}:loss_with_memo", "k.args": []}),
        ((1, "a", None), {"k": [1, "a", None]}),
        ((Mine(), 2), {"k": "2 items", "k.0": f"{HERE}:Mine", "k.0.rate": 0.5, "k.0.inner": None, "k.1": 2}),
        ({"b": 1, "a": {"c": 2}}, {"k.a.c": 2, "k.b": 1}),
        ({3, 1}, {"k": ['{"": 1}', '{"": 3}']}),
        (float("inf"), {"k": "inf"}),
        (torch.float64, {"k": "torch.float64"}),
        (len, {"k": "builtins:len"}),
    ],
)  # fmt: skip
def test_a_value_is_described_by_what_it_is(value: Any, wanted: dict[str, Any]) -> None:
    assert plain_entries("k", value) == wanted
    assert json.loads(json.dumps(wanted)) == wanted


def test_tensors_are_described_by_shape_and_content() -> None:
    values = torch.arange(6.0).view(2, 3)
    text = plain_entries("k", values)["k"]
    assert text.startswith("2×3 float32, sha256 ")
    assert plain_entries("k", values.t().contiguous().t())["k"] == text
    assert plain_entries("k", values.numpy())["k"] == text
    assert plain_entries("k", values + 1)["k"] != text
    assert plain_entries("k", values.bfloat16())["k"].startswith("2×3 bfloat16")
    assert plain_entries("k", torch.zeros(0))["k"].startswith("0 float32")
    assert plain_entries("k", np.float64(2.5))["k"] == 2.5


def test_a_value_that_holds_itself_ends() -> None:
    value = Plain(1.0)
    value.me = value  # type: ignore[attr-defined]
    assert plain_entries("k", value)["k.me"] == "itself"


def test_a_function_of_a_user_s_file_is_known_wherever_the_file_lies(tmp_path: Path) -> None:
    found = []
    for name, source in (("here", "def loss(step): return 1"), ("there", "\ndef loss(step): return 1")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "mine.py").write_text(source)
        found.append(plain_entries("k", import_object(f"{tmp_path}/{name}/mine.py:loss")))
    assert found == [{"k": "mine:loss"}] * 2


def test_keys_that_another_version_does_not_know_are_no_difference() -> None:
    before, now = {"a": 1, "b": 2, "old": 3}, {"a": 1, "b": 5, "new": 4}
    assert differences(before, now, same_version=False) == ["b was 2, and is 5 now"]
    assert differences(before, now) == [
        "b was 2, and is 5 now",
        "old was 3, and is not there now",
        "new was not there, and is 4 now",
    ]


SCRIPT = """
import sys
from pathlib import Path
sys.path.insert(0, {root!r})
from tests.running.folders.test_identity import own_method, train
train(Path({out!r}), method=own_method(0.3), rounds=1)
"""


def own_method(rate: float) -> Algorithm:
    """A method with a function that closes over a number, as users write them."""

    def loss(step: Any) -> torch.Tensor:
        return cross_entropy(step) * rate

    return Algorithm("mine", loss=loss, schedule=all_units)


@pytest.mark.slow
def test_the_identity_is_the_same_in_another_process(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    root = str(Path(__file__).parents[3])
    script.write_text(SCRIPT.format(root=root, out=str(tmp_path / "there")))
    environment = {**os.environ, "PYTHONHASHSEED": "77", "OMP_NUM_THREADS": "1"}
    subprocess.run([sys.executable, str(script)], check=True, env=environment)
    train(tmp_path / "here", method=own_method(0.3), rounds=1)
    first, second = (read_marker(tmp_path / name) for name in ("here", "there"))
    assert first == second
    assert first is not None
    assert first.identity["method.loss.rate"] == 0.3
    assert train(tmp_path / "there", method=own_method(0.3), rounds=2, resume=True).history[-1]["round"] == 2
    with pytest.raises(RequestError, match=r"method.loss.rate was 0.3, and is 0.4 now"):
        train(tmp_path / "there", method=own_method(0.4), rounds=3, resume=True)


def test_every_checkpoint_says_whose_it_is(stopped: Path) -> None:
    found = json.loads((stopped / "checkpoint/000002/state.json").read_text())
    assert found["identity"] == digest_in(stopped)
    assert set(found["sha256"]) == {"history", "clients"}
    marker = read_marker(stopped)
    assert marker is not None
    assert (marker.format, marker.kind) == (2, "run")
    assert marker.identity["method.alpha"] == 0.1
    assert not {"rounds", "name", "checkpoint.every", "engine.name", "partition.path"} & set(marker.identity)
