"""How many streams: what was found before is taken, a trial is made only where it is repaid."""

from pathlib import Path

import pytest
import torch

from kedge.algorithms import fedavg
from kedge.bench.workloads import WORKLOADS
from kedge.core.algorithm import Stage
from kedge.engines import streams
from kedge.engines.streams import best, tried


def test_a_few_numbers_are_tried() -> None:
    assert tried(1) == [1]
    assert tried(10) == [1, 2, 10]
    assert tried(5) == [1, 5]
    assert tried(100) == [1, 2]


def asked(
    to_come: float, took: dict[int, float], precision: str = "tf32"
) -> tuple[int, list[int], list[str]]:
    """The number for ten rows whose trials take these seconds; which were tried; what was said."""
    work = WORKLOADS["overhead"]
    task, stage = work.task("cpu"), Stage(fedavg(), 1, work.local())
    ran: list[int] = []
    said: list[str] = []

    def seconds(count: int) -> float:
        ran.append(count)
        return took[count]

    found = best(task.model, task.federation, stage, 10, precision, seconds, to_come, 20.0, said.append)
    return found, ran, said


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("KEDGE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "a GPU")
    return tmp_path / "cache"


def test_short_work_is_one_stack_and_nothing_is_tried() -> None:
    assert asked(599.0, {}) == (1, [], [])


def test_long_work_takes_the_fastest_and_remembers_it() -> None:
    found, ran, said = asked(601.0, {1: 3.0, 2: 2.0, 10: 4.0})
    assert (found, ran) == (2, [1, 2, 10])
    assert "60 s" in said[0]
    assert asked(1.0, {}) == (2, [], [])  # known now, for the shortest work too
    assert asked(1.0, {}, precision="bf16")[0] == 1  # but not for another precision


def test_a_spoilt_file_is_told_and_written_anew(own_cache: Path) -> None:
    own_cache.mkdir()
    (own_cache / "streams.json").write_text("{")
    found, _, said = asked(601.0, {1: 1.0, 2: 2.0, 10: 4.0})
    assert found == 1
    assert "streams.json cannot be read" in said[0]
    assert streams.read(own_cache / "streams.json", said.append)
