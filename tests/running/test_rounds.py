"""`rounds` is a whole number, and not smaller than the number of rounds that a resumed run has reached."""

import re
import signal
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import pytest
import torch
from tests.cli.command import SMALL, kedge
from tests.running.short_runs import experiment
from torch import nn

import kedge as library
from kedge.core.errors import RequestError
from kedge.running.execute import execute, resume
from kedge.running.folders.folder import read_lines
from kedge.running.progress import Interrupted, Observer


@pytest.fixture(autouse=True)
def a_minute() -> Iterator[None]:
    """A run that never ends fails."""

    def late(number: int, frame: FrameType | None) -> None:
        raise TimeoutError

    before = signal.signal(signal.SIGALRM, late)
    signal.alarm(60)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


def train(out: Path | None = None, resume: bool = False, **options: Any) -> library.Result:
    draw = np.random.default_rng(0)
    clients = [library.Dataset(draw.standard_normal((8, 3)), draw.integers(0, 2, 8)) for _ in range(2)]
    torch.manual_seed(0)
    return library.train(
        nn.Linear(3, 2), clients, out=out, resume=resume, engine="sequential", progress=False, **options
    )


def run_and_stop(folder: Path, after: int, **settings: Any) -> None:
    """Start a run and stop it after some rounds."""
    lines: list[Any] = []
    with pytest.raises(Interrupted):
        execute(
            experiment(engine__name="sequential", **settings),
            folder,
            Observer(line=lines.append, stop=lambda: len(lines) >= after),
        )
    assert len(read_lines(folder / "history.jsonl")) == after


def rewritten(folder: Path, rounds: object) -> None:
    config = folder / "config.toml"
    config.write_text(re.sub(r"^rounds = .*$", f"rounds = {rounds}", config.read_text(), flags=re.MULTILINE))


def test_a_call_for_fewer_rounds_than_were_reached_is_refused(tmp_path: Path) -> None:
    first = train(tmp_path / "run", rounds=4)
    message = (
        r"rounds = 2: the run in .*run has reached round 4. Set rounds to at least 4, or start a new run"
    )
    with pytest.raises(RequestError, match=message):
        train(tmp_path / "run", resume=True, rounds=2)
    again = train(tmp_path / "run", resume=True, rounds=4)
    assert again.history == first.history
    assert all(v.equal(first.model[k]) for k, v in again.model.items())
    longer, whole = train(tmp_path / "run", resume=True, rounds=6), train(rounds=6)
    assert len(longer.history) == 6
    assert all(v.equal(whole.model[k]) for k, v in longer.model.items())


def test_a_config_with_fewer_rounds_than_were_reached_is_refused(tmp_path: Path) -> None:
    run_and_stop(tmp_path / "run", 5, rounds=8)
    rewritten(tmp_path / "run", 3)
    answer = kedge("run", "--resume", tmp_path / "run")
    assert answer.code == 2, answer
    assert (
        f"rounds = 3: the run in {tmp_path / 'run'} has reached round 5. Set rounds to at least 5"
        in answer.err
    )
    assert len(read_lines(tmp_path / "run/history.jsonl")) == 5
    rewritten(tmp_path / "run", 5)
    assert kedge("run", "--resume", tmp_path / "run").code == 0
    rewritten(tmp_path / "run", 4)  # a finished run as well
    assert kedge("run", "--resume", tmp_path / "run").code == 2
    rewritten(tmp_path / "run", 6)
    assert kedge("run", "--resume", tmp_path / "run").code == 0
    assert len(read_lines(tmp_path / "run/history.jsonl")) == 6


def test_a_stage_that_would_have_ended_before_is_refused(tmp_path: Path) -> None:
    run_and_stop(tmp_path / "run", 8, rounds=12, method="feddyn -> fedavg")
    rewritten(tmp_path / "run", 9)
    with pytest.raises(RequestError, match=r"then\.0\.at was 9, and is 7 now"):
        resume(tmp_path / "run")
    (tmp_path / "run/kedge.json").unlink()  # as in a run of version 0.1
    with pytest.raises(
        RequestError, match=r"stage 1 of 2 .feddyn. then ends after round 7, but the run in .* 8"
    ):
        resume(tmp_path / "run")


@pytest.mark.parametrize("value", [1.5, 3.0, float("nan"), float("inf"), True, "3", None, -1])
def test_a_number_of_rounds_is_a_whole_number(value: Any, tmp_path: Path) -> None:
    with pytest.raises(RequestError, match=f"rounds = {value!r}: need a whole number of at least 1"):
        train(rounds=value)
    with pytest.raises(RequestError, match=f"rounds = {value!r}: "):
        library.run("quickstart", rounds=value, progress=False)
    if isinstance(value, float):
        answer = kedge("run", "quickstart", *SMALL, "--set", f"rounds={value}", "--out", tmp_path / "run")
        assert answer.code == 2
        assert f"rounds = {value}: " in answer.err
        assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("name", "least", "most"),
    [
        ("epochs", 1, None),
        ("batch", 1, None),
        ("per_round", 1, None),
        ("evaluate_every", 1, None),
        ("tune_every", 0, None),
        ("checkpoint_every", 1, None),
        ("seed", 0, 2**32 - 1),
    ],
)
def test_other_arguments_that_count_are_whole_numbers(name: str, least: int, most: int | None) -> None:
    def call(value: Any) -> None:
        given: dict[str, Any] = {name: value}
        train(rounds=1, **given)

    allowed = f"from {least} to {most}" if most else f"of at least {least}"
    for value in (1.5, float("nan"), float("inf"), True, "3", least - 1, *([most + 1] if most else [])):
        with pytest.raises(RequestError, match=f"^{name} = {value!r}: need a whole number {allowed}[.;]"):
            call(value)
    call(np.int64(least))


def test_whole_numbers_of_numpy_are_written_as_numbers(tmp_path: Path) -> None:
    train(tmp_path / "run", rounds=np.int32(2), seed=np.uint8(3), per_round=np.int64(1))
    assert "rounds = 2\nseed = 3\n" in (tmp_path / "run/config.toml").read_text()
