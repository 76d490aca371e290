"""A run that trains by itself: in the main thread, without the scheduler of packs."""

from pathlib import Path
from threading import Thread, current_thread, main_thread
from typing import Any

import pytest
from tests.running.short_runs import errors_of, experiment, members

from kedge.core.errors import RequestError
from kedge.running.folders.folder import locked
from kedge.running.packs.scheduler import PackScheduler
from kedge.running.progress import Interrupted, Progress
from kedge.running.runner import run


def test_a_single_run_trains_in_the_main_thread_without_the_scheduler_of_packs(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def refuse(*_: Any) -> None:
        raise AssertionError("a single run needs no scheduler")

    def record_thread(*given: Any) -> Progress:
        threads.append(current_thread())
        return run(*given)

    threads: list[Thread] = []
    monkeypatch.setattr(PackScheduler, "__init__", refuse)
    monkeypatch.setattr("kedge.running.execute.run", record_thread)
    assert errors_of(members(tmp_path, [experiment()])) == {"run0": None}
    assert threads == [main_thread()]


def test_a_single_run_that_cannot_start_is_reported_with_its_error(tmp_path: Path) -> None:
    [request] = members(tmp_path, [experiment(rounds=1)])
    assert errors_of([request]) == {"run0": None}
    assert "exists already" in str(errors_of([request])["run0"])
    with locked(request.folder):
        error = errors_of([request._replace(start="resume")])["run0"]
    assert isinstance(error, RequestError)
    assert "another process is running in" in str(error)


def test_a_single_run_that_is_stopped_before_it_starts_creates_nothing(tmp_path: Path) -> None:
    with pytest.raises(Interrupted):
        errors_of(members(tmp_path, [experiment()]), stop=lambda: True)
    assert not (tmp_path / "run0").exists()
