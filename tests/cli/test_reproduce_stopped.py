"""kedge reproduce, interrupted or killed: records stay, and the next call trains the other runs."""

import os
import shlex
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from tests.cli.command import kedge
from tests.reproduce.digits_tables import ship, started

from kedge.reproduce.records import Record, read_records

TABLE = "digits-table1"
Process = subprocess.Popen[str]


@pytest.fixture
def begin(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Callable[..., Process]]:
    """Start `kedge reproduce` with the tables of digits, which this process finds, too."""
    every: list[Process] = []

    def start(*words: str, **settings: int) -> Process:
        every.append(started(tmp_path, TABLE, *words, "--out", tmp_path / "out", **settings))
        ship(monkeypatch, tmp_path / "tables")
        return every[-1]

    yield start
    for process in every:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)  # its workers, too
        process.communicate()


def until(process: Process, there: Callable[[], object]) -> None:
    deadline = time.monotonic() + 60
    while not there():
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.02)


def ended(process: Process, within: float) -> str:
    """Standard error of a process that was interrupted and ended in time."""
    _, err = process.communicate(timeout=within)
    assert process.returncode == 130, err
    assert "Traceback" not in err
    return err


def children(process: Process) -> list[int]:
    """Child processes of this process that still run."""
    found = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text()
    return [int(number) for number in found.split()]


def runs(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def files(tmp_path: Path) -> list[Path]:
    return list((tmp_path / "out").glob("*/*.jsonl"))


def training(tmp_path: Path, count: int = 1) -> Callable[[], bool]:
    """Whether this number of runs has started."""
    return lambda: len(list((tmp_path / "tmp").glob("*/*/environment.json"))) >= count


def check_whole(tmp_path: Path, kept: list[Record], count: int) -> None:
    """After another call all runs are recorded once, and earlier records are unchanged."""
    records = read_records(tmp_path / "out")
    assert len(records) == sum(file.read_bytes().count(b"\n") for file in files(tmp_path)) == count
    assert all(record in records for record in kept)
    assert all(record.rounds == records[0].rounds for record in records)


def check_gone(pids: list[int]) -> None:
    deadline = time.monotonic() + 10
    while any(map(runs, pids)):
        assert time.monotonic() < deadline
        time.sleep(0.05)


@pytest.mark.slow
def test_a_killed_reproduction_leaves_no_processes_and_goes_on_with_the_runs_that_are_missing(
    begin: Callable[..., Process], tmp_path: Path
) -> None:
    process = begin("--seeds", "4", "--pack", "1", "--workers", "2")
    until(process, lambda: files(tmp_path))
    workers = children(process)
    assert len(workers) >= 2
    process.kill()
    process.communicate(timeout=20)  # its workers hold the pipe
    check_gone(workers)
    kept = read_records(tmp_path / "out")
    assert 0 < len(kept) < 16
    answer = kedge("reproduce", TABLE, "--seeds", "4", "--out", tmp_path / "out")
    assert answer.code == 0
    assert f"{len(kept)} of 16 runs are recorded already." in answer.err
    assert answer.err.count(": done\n") == 16 - len(kept)
    check_whole(tmp_path, kept, 16)


@pytest.mark.slow
def test_ctrl_c_ends_after_the_round_and_prints_the_command_that_goes_on(
    begin: Callable[..., Process], tmp_path: Path
) -> None:
    process = begin("--seeds", "5", "--pack", "1", "--cells", "column=α*")
    until(process, lambda: files(tmp_path))
    process.send_signal(signal.SIGINT)
    err = ended(process, 20)
    assert "stopping after this round; press Ctrl-C again to stop at once" in err
    last = err.splitlines()[-1]
    message, command = last.split(" Resume with: ")
    assert message == "interrupted; finished runs are recorded."
    assert not list((tmp_path / "tmp").glob("kedge-*"))
    kept = read_records(tmp_path / "out")
    assert 0 < len(kept) < 10
    program, *words = shlex.split(command)
    assert program == "kedge"
    assert kedge(*words, "--quiet") == (0, "", "")
    check_whole(tmp_path, kept, 10)


@pytest.mark.slow
def test_ctrl_c_twice_does_not_wait_for_the_round_of_any_process(
    begin: Callable[..., Process], tmp_path: Path
) -> None:
    process = begin("--workers", "2", epochs=20000)  # a round of minutes
    until(process, training(tmp_path, 2))
    workers = children(process)
    os.killpg(process.pid, signal.SIGINT)  # as a terminal does
    time.sleep(0.3)
    os.killpg(process.pid, signal.SIGINT)
    err = ended(process, 10)
    assert err.splitlines()[-1].startswith("interrupted; finished runs are recorded. Resume with: kedge repr")
    check_gone(workers)
    assert not list((tmp_path / "tmp").glob("kedge-*"))


@pytest.mark.slow
def test_ctrl_c_twice_does_not_wait_for_the_round_of_this_process(
    begin: Callable[..., Process], tmp_path: Path
) -> None:
    process = begin(epochs=20000)
    until(process, training(tmp_path))
    process.send_signal(signal.SIGINT)
    time.sleep(0.3)
    process.send_signal(signal.SIGINT)
    assert "interrupted; finished runs are recorded. Resume with: kedge reproduce" in ended(process, 10)
    assert not list((tmp_path / "tmp").glob("kedge-*"))


@pytest.mark.slow
def test_ctrl_c_while_processes_start_is_no_failure_of_a_run(
    begin: Callable[..., Process], tmp_path: Path
) -> None:
    process = begin("--workers", "2")
    until(process, lambda: len(children(process)) >= 3)  # one is multiprocessing's own
    time.sleep(0.3)
    os.killpg(process.pid, signal.SIGINT)
    err = ended(process, 20)
    assert "interrupted; finished runs are recorded. Resume with: kedge reproduce" in err
    assert "error" not in err


@pytest.mark.slow
def test_sigterm_to_all_processes_is_no_failure_of_a_run(
    begin: Callable[..., Process], tmp_path: Path
) -> None:
    process = begin("--workers", "2", epochs=1000)
    until(process, training(tmp_path, 2))
    os.killpg(process.pid, signal.SIGTERM)
    err = ended(process, 9)
    assert "interrupted; finished runs are recorded. Resume with: kedge reproduce" in err
    assert "error" not in err
