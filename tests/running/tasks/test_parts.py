"""Parts of runs on a cluster that need no cluster: jobs, events, the table, the check of a shared folder."""

import os
import pickle
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from kedge.config.experiment import EngineChoice, Experiment
from kedge.core.errors import Diverged, RequestError
from kedge.engines.ray.shares import Machine, Share
from kedge.running.requests import Outcome, RunRequest
from kedge.running.several_runs import trains_as_task
from kedge.running.tasks.events import Desk, Ended, Line, Message, end_event, line_of
from kedge.running.tasks.jobs import jobs_of, on_worker, tasks_at_once
from kedge.running.tasks.shared_folder import SharedFolder, shared_folder
from kedge.running.tasks.table import RunsTable, duration

METHODS: tuple[dict[str, Any], ...] = ({"name": "fedavg"}, {"name": "fedprox", "mu": 0.1})


def requests(seeds: int, engine: EngineChoice, top: Path = Path("top")) -> list[RunRequest]:
    """Runs of two methods with these seeds."""
    return [
        RunRequest(
            top / method["name"] / f"seed{seed}",
            Experiment("runs", rounds=10, seed=seed, method=method, engine=engine),
        )
        for method in METHODS
        for seed in range(seeds)
    ]


@pytest.mark.parametrize(
    ("wanted", "on_gpus", "runs", "expected"),
    [(0, False, 20, 16), (0, True, 20, 4), (0, True, 3, 3), (6, True, 20, 6), (6, False, 1, 1)],
)
def test_as_many_tasks_train_as_the_cluster_has_gpus_or_cores(
    wanted: int, on_gpus: bool, runs: int, expected: int
) -> None:
    machines = [Machine(8, 2), Machine(8, 2)]
    assert tasks_at_once(machines, EngineChoice("ray", workers=wanted), on_gpus, runs) == expected


@pytest.mark.parametrize(
    ("seeds", "tasks", "pack", "sizes"),
    [
        (4, 2, 0, [4, 4]),  # each method is a pack
        (4, 4, 0, [2, 2, 2, 2]),  # no task is without work
        (5, 2, 1, [1] * 10),
        (5, 2, 2, [2, 2, 1] * 2),
        (20, 2, 0, [7, 7, 6] * 2),  # at most eight runs on a CPU
    ],
    ids=str,
)
def test_runs_of_one_program_share_a_job_if_all_tasks_have_work(
    seeds: int, tasks: int, pack: int, sizes: list[int]
) -> None:
    jobs = jobs_of(requests(seeds, EngineChoice("ray")), tasks, pack, on_gpus=False)
    assert [len(job) for job in jobs] == sizes
    assert all(len({request.experiment.method["name"] for request in job}) == 1 for job in jobs)


def test_runs_of_the_sequential_engine_have_jobs_of_their_own() -> None:
    engine = EngineChoice("ray", worker_engine="sequential")
    assert [len(job) for job in jobs_of(requests(4, engine), 2, 0, on_gpus=False)] == [1] * 8


def test_a_run_on_a_worker_has_the_settings_of_a_run_without_a_cluster() -> None:
    engine = EngineChoice(
        "ray", worker_engine="stacked", workers=4, address="10.0.0.5:6379", precision="fp64"
    )
    (request, *_) = requests(1, engine)
    own = on_worker(request, Share(4.0, 0.0)).experiment.engine
    assert own == EngineChoice("stacked", device="cpu", threads=4, precision="fp64")
    assert on_worker(request, Share(0.5, 0.25)).experiment.engine.device == "cuda"
    assert trains_as_task(request)
    assert not trains_as_task(on_worker(request, Share(4.0, 0.0)))


class OwnError(Exception):
    """An error that pickles in one process only."""

    def __reduce__(self) -> tuple[type, tuple[object, ...]]:
        return OwnError, (1, 2, 3, 4)

    def __init__(self, text: str) -> None:
        super().__init__(text)


def test_an_error_arrives_with_its_type_or_else_with_its_text() -> None:
    (request, *_) = requests(1, EngineChoice("ray"))
    known = end_event(0, Outcome(request, Diverged("fedavg diverged"), "trace"))
    arrived = pickle.loads(pickle.dumps(known)).outcome(request)
    assert isinstance(arrived.error, Diverged)
    assert (str(arrived.error), arrived.trace) == ("fedavg diverged", "trace")
    unknown = end_event(0, Outcome(request, OwnError("my text"), "trace")).outcome(request)
    assert isinstance(unknown.error, RuntimeError)
    assert "OwnError: my text" in str(unknown.error)
    assert end_event(0, Outcome(request)).outcome(request) == Outcome(request)


def test_the_desk_keeps_events_until_they_are_taken_and_passes_the_request_to_stop() -> None:
    desk = Desk()
    assert not desk.report([Message("a")])
    assert desk.take(stopping=True) == [Message("a")]
    assert desk.take(stopping=True) == []
    assert desk.report([Message("b")])


def history_line(round: int, accuracy: float) -> dict[str, object]:
    return {
        "round": round,
        "distributed.global.accuracy": accuracy,
        "time": {"samples_per_second": 12345.6},
    }


def test_the_table_shows_each_run_that_trains_and_counts_the_others() -> None:
    table = RunsTable(dict(enumerate(requests(2, EngineChoice("ray")))), 2, shown=True)
    table.show_line(line_of(1, history_line(2, 0.5)))
    table.rows[1].first_seen -= 30
    table.show_line(line_of(1, history_line(5, 0.75)))
    table.show_line(Line(2, 1, None, 7.0))
    table.show_end(Ended(0))
    table.show_end(Ended(3, "RequestError: no"))
    console = Console(width=120)
    with console.capture() as capture:
        console.print(table.render())
    shown = capture.get().splitlines()
    assert shown[0].split() == ["run", "method", "round", "accuracy", "samples/s", "left"]
    assert shown[1].split() == ["fedavg/seed1", "fedavg", "5/10", "75.0", "%", "12,346", "0:00:50"]
    assert shown[2].split() == ["fedprox/seed0", "fedprox", "1/10", "–", "7", "–"]
    assert shown[3] == "1 of 4 runs finished, 1 failed; 2 train, 0 wait; 2 task(s) at once"
    assert duration(3723.4) == "1:02:03"


@pytest.mark.parametrize("shown", [None, False])
def test_without_a_terminal_a_line_is_printed_at_the_end_of_each_run(
    shown: bool | None, capsys: pytest.CaptureFixture[str]
) -> None:
    table = RunsTable(dict(enumerate(requests(2, EngineChoice("ray")))), 2, shown)
    with table:
        table.show_line(line_of(1, history_line(10, 0.75)))
        table.show_end(Ended(1))
        table.show_end(Ended(2, "RequestError: no"))
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == (2 if shown is None else 0)
    if lines:
        assert lines[0].endswith("fedavg/seed1: round 10, accuracy 75.0 %")
        assert lines[1].endswith("fedprox/seed0: failed")


def test_a_machine_that_does_not_see_the_folder_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("KEDGE_DATA", "somewhere")
    with shared_folder([Path("sweep/cell/seed0"), Path("sweep/other/seed0")]) as shared:
        assert shared.folder == tmp_path
        monkeypatch.chdir("/")
        monkeypatch.delenv("KEDGE_DATA")
        shared.enter()
        assert (Path.cwd(), os.environ["KEDGE_DATA"]) == (tmp_path, "somewhere")
        for other in (
            shared._replace(folder=tmp_path / "missing"),
            shared._replace(working=tmp_path / "missing"),
            shared._replace(token="of another driver"),
        ):
            with pytest.raises(RequestError, match=r"does not see the folder .* all machines share"):
                other.enter()
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(RequestError, match="No such file"):
        SharedFolder(tmp_path, shared.token, tmp_path, "driver", None).enter()
