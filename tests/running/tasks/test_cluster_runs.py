"""Runs as tasks of a cluster end as they do without one: undisturbed, after a kill, a stop, a new address."""

import os
import shutil
import signal
from dataclasses import replace
from pathlib import Path

import pytest
from safetensors.torch import load_file
from tests.cli.command import kedge
from tests.reproduce.digits_tables import options, recorded, ship, write_tables
from tests.running.tasks.sweeps import (
    check_same_bytes,
    engine_of,
    lines,
    machines,
    runs_of,
    start,
    wait_until,
    write_sweep,
)

from kedge.cli.actions.sweep import recorded_plan
from kedge.core.errors import RequestError
from kedge.engines.ray.cluster import Cluster
from kedge.reproduce.plan import missing_runs, table_of
from kedge.reproduce.plan import runs_of as runs_of_table
from kedge.reproduce.work import train
from kedge.running.folders.folder import locked
from kedge.running.progress import Interrupted
from kedge.running.requests import RunRequest
from kedge.running.several_runs import run_all

pytestmark = pytest.mark.slow
LOST = "a worker was lost: 1 run(s) continue from their last checkpoints"


def test_a_sweep_whose_worker_is_killed_has_the_bytes_of_a_sweep_in_one_process(
    cluster: Cluster, tmp_path: Path
) -> None:
    """One cell ends its process in its sixth round; another diverges, and takes no other cell down."""
    marker = tmp_path / "death"
    method = f"{tmp_path / 'lethal.py'}:lethal"
    killing = f'{{name = "{method}", marker = "{marker}"}}'
    grid = f'"method, optimizer.lr" = [["fedavg", 0.1], [{killing}, 0.1], ["fedprox(mu=1.0)", 1e300]]'
    file = write_sweep(tmp_path, grid)
    answer = kedge("sweep", file, "--engine", "ray", "--out", tmp_path / "cluster")
    assert marker.is_dir(), answer.err
    assert answer.code == 1
    assert answer.err.count(LOST) == 1
    assert answer.err.count("diverged in round") == 1
    ends = [line for line in answer.err.splitlines() if " of 3 " in line]
    assert sorted(line.partition(": ")[2].partition(",")[0] for line in ends) == [
        "failed",
        "round 8",
        "round 8",
    ]
    assert answer.out.startswith("cell ")
    alone = kedge("sweep", file, "--engine", "sequential", "--out", tmp_path / "alone")
    assert alone.code == 1
    check_same_bytes(tmp_path / "cluster", tmp_path / "alone")
    for run in runs_of(tmp_path / "cluster"):
        assert engine_of(tmp_path / "cluster" / run)["name"] == "sequential"
    assert not list((tmp_path / "cluster").rglob(".on-cluster"))
    again = kedge("sweep", "--resume", tmp_path / "cluster", "--json")
    assert again.code == 1
    assert [row["complete"] for row in again.json()["cells"]] == [True, True, False]
    assert " of 1 " not in again.err


def test_a_run_that_ends_its_process_again_and_again_fails_and_the_others_finish(
    cluster: Cluster, tmp_path: Path
) -> None:
    """It ends in its sixth round, after the checkpoint of the fourth."""
    killing = f'{{name = "{tmp_path / "lethal.py"}:lethal", marker = "always"}}'
    out = tmp_path / "out"
    answer = kedge(
        "sweep", write_sweep(tmp_path, f'method = [{killing}, "fedavg"]'), "--engine", "ray", "--out", out
    )
    assert answer.code == 1
    assert answer.err.count(LOST) == 2
    assert answer.err.count("ended suddenly, 3 times without a new checkpoint") == 1
    finished = [run for run in runs_of(out) if (out / run / "model.safetensors").is_file()]
    assert [len(lines(out / run)) for run in finished] == [8]
    (failed,) = set(runs_of(out)) - set(finished)
    assert (out / failed / "checkpoint" / "000004").is_dir()


def test_runs_of_one_program_train_in_packs_on_the_workers(cluster: Cluster, tmp_path: Path) -> None:
    file = write_sweep(tmp_path, '"optimizer.lr" = [0.1, 0.05]', engine="stacked")
    words = (file, "--seeds", "2", "--quiet")
    answer = kedge("sweep", *words, "--engine", "ray", "--out", tmp_path / "cluster")
    assert (answer.code, answer.err, answer.out) == (0, "", "")
    assert kedge("sweep", *words, "--engine", "stacked", "--pack", "1", "--out", tmp_path / "alone").code == 0
    for run in runs_of(tmp_path / "alone"):
        assert engine_of(tmp_path / "cluster" / run)["packed"] == 2
        mine, other = (load_file(tmp_path / top / run / "model.safetensors") for top in ("cluster", "alone"))
        largest = max(float(v.abs().max()) for v in other.values())
        assert max(float((v - other[k]).abs().max()) for k, v in mine.items()) < 1e-12 * largest


def rounds_in(sweep: Path) -> int:
    """The lines of all histories of a sweep."""
    return sum(file.read_bytes().count(b"\n") for file in sweep.rglob("history.jsonl"))


def test_the_sweep_of_a_killed_driver_is_finished_with_and_without_a_cluster(
    cluster: Cluster, tmp_path: Path
) -> None:
    file = write_sweep(tmp_path, '"optimizer.lr" = [0.1, 0.05, 0.02]', epochs=25)
    killed = tmp_path / "killed"
    driver = start("sweep", file, "--engine", "ray", "--out", killed, "--quiet")
    wait_until(lambda: rounds_in(killed) >= 5, 120)
    os.kill(driver.pid, signal.SIGKILL)
    driver.wait()
    wait_until(lambda: nothing_trains_in(killed), 60)
    assert rounds_in(killed) < 24
    shutil.copytree(killed, tmp_path / "copy")
    assert kedge("sweep", "--resume", killed, "--quiet").code == 0
    answer = kedge("sweep", "--resume", tmp_path / "copy", "--engine", "sequential", "--quiet")
    assert answer.code == 0
    check_same_bytes(killed, tmp_path / "copy")
    assert [len(lines(killed / run)) for run in runs_of(killed)] == [8, 8, 8]


def nothing_trains_in(sweep: Path) -> bool:
    """Whether all runs of a sweep can be locked, because no task trains them."""
    try:
        for run in runs_of(sweep):
            with locked(sweep / run):
                pass
    except RequestError:
        return False
    return True


def test_stopped_tasks_save_their_states_and_waiting_ones_never_start(
    cluster: Cluster, tmp_path: Path
) -> None:
    file = write_sweep(tmp_path, '"optimizer.lr" = [0.1, 0.05, 0.02]', epochs=25)
    out = tmp_path / "stopped"
    answer = kedge("sweep", file, "--engine", "ray", "--out", tmp_path / "whole", "--quiet")
    assert answer.code == 0
    plan = recorded_plan(tmp_path / "whole", "same")
    requests = [RunRequest(out / run.folder, run.experiment) for run in plan]
    with pytest.raises(Interrupted):
        list(run_all(requests, shown=False, stop=lambda: rounds_in(out) >= 2, spread=True))
    started = runs_of(out)
    assert 1 <= len(started) < 3
    for run in started:
        assert 0 < len(lines(out / run)) < 8
        newest = max(int(folder.name) for folder in (out / run / "checkpoint").iterdir())
        assert newest == len(lines(out / run))
    resumed = [
        request._replace(start="resume" if (request.folder / "config.toml").is_file() else "new")
        for request in requests
    ]
    assert not [end.error for end in run_all(resumed, shown=False, spread=True) if end.error]
    for run in runs_of(out):
        assert lines(out / run) == lines(tmp_path / "whole" / run)


def test_a_run_continues_at_another_address_and_a_sweep_trains_there(
    cluster: Cluster, tmp_path: Path
) -> None:
    """In processes of their own, because a process is connected to one cluster."""
    file = write_sweep(tmp_path, '"optimizer.lr" = [0.1, 0.05]')
    single, run, sweep = tmp_path / "single.toml", tmp_path / "run", tmp_path / "sweep"
    single.write_text(file.read_text().partition("[grid]")[0])
    words = ("--set", "engine.workers=2", "--quiet", "--engine", "ray")
    with machines(2) as first:
        begun = start("run", single, "--address", first, *words, "--set", "rounds=4", "--out", run)
        assert begun.wait(120) == 0
    config = run / "config.toml"
    config.write_text(config.read_text().replace("rounds = 4", "rounds = 8"))
    with machines(1) as second:
        assert start("run", "--resume", run, "--address", second, "--quiet").wait(120) == 0
        assert start("sweep", file, "--address", second, *words, "--out", sweep).wait(120) == 0
    assert kedge("run", single, *words, "--out", tmp_path / "whole").code == 0
    assert (run / "model.safetensors").read_bytes() == (tmp_path / "whole/model.safetensors").read_bytes()
    assert lines(run) == lines(tmp_path / "whole")
    assert [len(lines(sweep / each)) for each in runs_of(sweep)] == [8, 8]


def test_reproduce_on_a_cluster_has_the_records_of_one_process(
    cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One of the runs diverges, and two have no data."""
    ship(monkeypatch, write_tables(tmp_path / "tables"))
    found = []
    for settings in ({"engine.name": "ray", "engine.worker_engine": "stacked"}, {}):
        tables = [table_of(name, settings) for name in ("digits-table1", "digits-table2")]
        missing = missing_runs(
            [run for t in tables for run in runs_of_table(t, "full", range(1), Path())], []
        )
        ends = {end.run.name: end for end in train(missing, options(folder=tmp_path))}
        found.append(ends)
    on_cluster, alone = found
    assert on_cluster.keys() == alone.keys()
    assert {name for name, end in on_cluster.items() if end.error} == {
        name for name, end in alone.items() if end.error
    }
    records = {name: end.record for name, end in on_cluster.items() if end.record}
    assert len(records) == 5
    for name, record in records.items():
        assert replace(record, elapsed=0) == replace(recorded(alone[name].record), elapsed=0)
    assert [path.name for path in tmp_path.iterdir()] == ["tables"]
