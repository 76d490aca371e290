"""Checkpoints written during the next rounds have the same bytes, are complete, and lose no error."""

import errno
import json
import os
import threading
from pathlib import Path

import pytest
import safetensors.torch
import torch
from tests.contract.resuming import stop_after
from tests.running.overlapping_engine import Late
from tests.running.plain_torch import NO_MOMENTUM, task_of

from kedge.algorithms import fedavg, scaffold
from kedge.core.errors import Diverged
from kedge.core.server import Rejection
from kedge.engines.stack.stacked import Stacked
from kedge.running.folders import checkpoint
from kedge.running.folders.tensor_file import write_tensors
from kedge.running.progress import Interrupted
from kedge.running.recording.checkpoint_writer import CheckpointWriter
from kedge.running.runner import run


def versions(folder: Path) -> dict[str, dict[str, bytes]]:
    found = sorted((folder / "checkpoint").iterdir())
    return {one.name: {p.name: p.read_bytes() for p in sorted(one.iterdir())} for one in found}


def test_the_next_rounds_train_while_a_state_is_written(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The first checkpoint waits until the second round is over and the stage has changed."""
    task = task_of((scaffold(), 1), (fedavg(), 3), local=NO_MOMENTUM)
    engine = Late(task.model, task.federation)
    save, held, when = checkpoint.save, threading.Event(), {}

    def slow(folder: Path, number: int, state: checkpoint.State) -> None:
        if number == 1:
            assert held.wait(60)
        when[number] = [entry for entry in engine.log if entry.startswith("round")]
        save(folder, number, state)

    train = engine.train

    def released(*asked):  # type: ignore[no-untyped-def]
        sums = train(*asked)
        if "round 2" in engine.log:
            held.set()
        return sums

    monkeypatch.setattr(checkpoint, "save", slow)
    monkeypatch.setattr(engine, "train", released)
    (tmp_path / "beside").mkdir()
    run(task, engine, tmp_path / "beside", 1)
    assert when[1] == ["round 1", "round 2"]
    monkeypatch.undo()
    (tmp_path / "plain").mkdir()
    run(task, Stacked(task.model, task.federation), tmp_path / "plain", 1)
    left, right = versions(tmp_path / "beside"), versions(tmp_path / "plain")
    assert list(left) == list(right) == ["000003", "000004"]
    for number, files in left.items():
        assert files["tensors.safetensors"] == right[number]["tensors.safetensors"]


def test_what_the_run_changes_afterwards_is_not_in_it(tmp_path: Path) -> None:
    """A new stage deletes slots from the dicts that an earlier checkpoint's state contains."""
    held = threading.Event()
    saver = CheckpointWriter(tmp_path / "checkpoint", overlap=True)
    assert saver.thread is not None
    saver.thread.submit(held.wait, 60)
    memory = {"slots": {"scaffold": {"c": torch.ones(2)}}, "local": {}, "buffers": {}}
    saver.save(1, checkpoint.State({"round": 1}, {"clients": {"0": memory}}))
    memory["slots"] = {}
    held.set()
    saver.wait()
    found = safetensors.torch.load_file(tmp_path / "checkpoint/000001/tensors.safetensors")
    assert list(found) == ["clients/0/slots/scaffold/c"]


def full(folder: Path, number: int, state: checkpoint.State) -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(folder))


def test_what_could_not_be_written_is_told(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    task = task_of((fedavg(), 4))
    monkeypatch.setattr(checkpoint, "save", full)
    engine = Late(task.model, task.federation)
    with pytest.raises(OSError, match="No space left"):
        run(task, engine, tmp_path, 2)
    assert "round 4" in engine.log  # raised when the next checkpoint was due
    engine = Late(task.model, task.federation)
    with pytest.raises(OSError, match="No space left"):
        run(task, engine, tmp_path, 100)  # at the end
    with pytest.raises(OSError, match="No space left"):
        run(task, Late(task.model, task.federation), tmp_path, 100, observer=stop_after(1))
    assert not (tmp_path / "model.safetensors").exists()


def test_an_error_of_the_run_comes_first(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    task = task_of((fedavg(), 4))
    monkeypatch.setattr(checkpoint, "save", full)
    engine = Late(task.model, task.federation, {3: (Rejection(0, "not finite"),)})
    with pytest.raises(Diverged, match="round 3") as raised:
        run(task, engine, tmp_path, 2)
    assert any("the last checkpoint could not be written" in note for note in raised.value.__notes__)


def test_who_stops_has_it_on_disk(tmp_path: Path) -> None:
    task = task_of((fedavg(), 4))
    with pytest.raises(Interrupted):
        run(task, Late(task.model, task.federation), tmp_path, 100, observer=stop_after(2))
    assert json.loads((tmp_path / "checkpoint/000002/state.json").read_text())["round"] == 2


def test_a_file_of_tensors_that_cannot_be_written_is_an_error_of_the_system(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="No such file"):
        write_tensors(tmp_path / "gone" / "x.safetensors", {"a": torch.zeros(2)})


def test_files_of_a_version_may_be_read_by_the_same_people(tmp_path: Path) -> None:
    checkpoint.save(tmp_path / "c", 1, checkpoint.State({"round": 1}, {"a": torch.zeros(2)}))
    modes = {p.stat().st_mode for p in (tmp_path / "c/000001").iterdir()}
    assert len(modes) == 1
