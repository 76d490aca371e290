"""Settings of the runner have their effects: evaluation, sampling, stages, natural keys, locks."""

import multiprocessing
import tomllib
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import kedge
from kedge.algorithms import fedavg, feddyn
from kedge.config.assemble import assemble
from kedge.config.document import override, read
from kedge.config.experiment import resolve
from kedge.core.algorithm import Stage
from kedge.core.errors import RequestError
from kedge.core.sampling import Participation
from kedge.engines.sequential import Sequential
from kedge.running.folders.folder import locked
from kedge.running.runner import run

SMALL: dict[str, Any] = {
    "model.name": "mlp",
    "training.epochs": 1,
    "engine.name": "sequential",
    "partition.clients": 6,
    "participation.per_round": 3,
}


def test_evaluation_every_n_rounds_and_at_the_end() -> None:
    history = kedge.run("quickstart", rounds=5, **{**SMALL, "evaluation.every": 2}).history
    assert [line["round"] for line in history if "distributed.global.accuracy" in line] == [2, 4, 5]
    assert all("train.loss" in line for line in history)


def test_bernoulli_participation_varies_and_is_never_empty() -> None:
    rule = Participation("bernoulli", share=0.1)
    sizes = [len(rule.sample(10, 0, round)) for round in range(300)]
    assert min(sizes) == 1
    assert len(set(sizes)) > 2
    assert rule.sample(10, 0, 7) == rule.sample(10, 0, 7)


def test_poisson_participation_is_a_draw_for_each_client_and_may_be_empty() -> None:
    rule = Participation("poisson", share=0.1)
    rounds = [rule.sample(10, 0, round) for round in range(2000)]
    empty = sum(not clients for clients in rounds) / 2000
    assert abs(empty - 0.9**10) < 4 * (0.35 * 0.65 / 2000) ** 0.5
    for client in range(10):
        share = sum(client in clients for clients in rounds) / 2000
        assert abs(share - 0.1) < 4 * (0.1 * 0.9 / 2000) ** 0.5


def test_the_expected_number_of_clients_is_exact() -> None:
    assert Participation("poisson", share=0.1).expected(15) == 1.5
    assert Participation("poisson", per_round=3).expected(7) == 3
    assert Participation(share=0.1).expected(15) == 1
    assert Participation().expected(7) == 7


@pytest.mark.parametrize("engine", ["sequential", "stacked"])
def test_a_round_without_clients_keeps_the_model(engine: str) -> None:
    settings = {"participation": {"rule": "poisson", "share": 0.1}, "engine.name": engine}
    history = kedge.run(
        "quickstart", rounds=8, **{k: v for k, v in SMALL.items() if "per_round" not in k} | settings
    ).history
    assert [line["round"] for line in history] == [*range(1, 9)]
    empty = [number for number, line in enumerate(history) if not line["clients"]]
    assert empty
    for number in empty:
        assert "train.loss" not in history[number]
        if number:
            before, after = history[number - 1], history[number]
            assert before["distributed.global.loss"] == after["distributed.global.loss"]


def test_exact_participation_does_not_depend_on_how_orders_are_drawn_together() -> None:
    from kedge.core.random import Purpose, permutation

    rule = Participation(per_round=4)
    for round in (0, 31, 32, 100):
        alone = permutation(20, 3, Purpose.SAMPLING, round=round)[:4]
        assert rule.sample(20, 3, round) == sorted(alone.tolist())


def test_a_stage_ends_early_on_its_history_and_the_run_resumes_after_it(tmp_path: Path) -> None:
    task = assemble(resolve(override(read("quickstart"), SMALL)))
    local = task.stages[0].local
    first = Stage(feddyn(0.1), 10, local, until=second_round)
    task = replace(task, stages=(first, Stage(fedavg("uniform"), 3, local, until=second_round)))
    progress = run(task, Sequential(task.model, task.federation), make(tmp_path / "run"))
    assert [line["method"] for line in progress.history] == ["feddyn"] * 2 + ["fedavg"] * 2
    assert sorted(p.name for p in (tmp_path / "run/checkpoint").iterdir()) == ["000004"]
    again = run(task, Sequential(task.model, task.federation), tmp_path / "run")
    assert again.round == 4


def second_round(history: Any) -> bool:
    return len(history) == 2


def make(folder: Path) -> Path:
    folder.mkdir()
    return folder


def test_natural_keys_are_named_where_there_are_several(tmp_path: Path) -> None:
    x = np.random.default_rng(0).standard_normal((60, 5)).astype(np.float32)
    y = np.arange(60) % 3
    subject, site = np.arange(60) % 4, np.arange(60) % 7
    np.savez(
        tmp_path / "mine.npz",
        x_train=x,
        y_train=y,
        x_test=x,
        y_test=y,
        subject_train=subject,
        site_train=site,
    )
    data = {"data": {"name": "mine", "path": str(tmp_path)}, "model": "mlp", "name": "mine"}

    def clients(**partition: str) -> int:
        document = {**data, "partition": {"name": "natural", **partition}}
        return len(assemble(resolve(document)).federation.clients)

    assert clients(key="subject") == 4
    assert clients(key="site") == 7
    with pytest.raises(RequestError, match=r"mine has several keys: .*Name one: partition.key"):
        clients()
    with pytest.raises(
        RequestError, match=r"partition.key = 'sit': mine has no such key. Did you mean 'site'\?"
    ):
        clients(key="sit")


def lock_until(folder: Path, ready: Any, leave: Any) -> None:
    with locked(folder):
        ready.set()
        leave.wait()


@pytest.mark.slow
def test_two_processes_do_not_run_in_one_folder(tmp_path: Path) -> None:
    (tmp_path / "config.toml").touch()
    context = multiprocessing.get_context("spawn")
    ready, leave = context.Event(), context.Event()
    other = context.Process(target=lock_until, args=(tmp_path, ready, leave))
    other.start()
    assert ready.wait(60)
    with pytest.raises(RequestError, match="another process is running in"), locked(tmp_path):
        pass
    leave.set()
    other.join()
    with locked(tmp_path):
        pass


def test_what_follows_what_is_one_line() -> None:
    method = "feddyn(alpha=0.1) -> fedbug + fedavg@0.5"
    history = kedge.run("quickstart", rounds=6, method=method, **SMALL).history
    assert [line["method"] for line in history] == ["feddyn"] * 3 + ["fedbug+fedavg"] * 3
    assert [line["stage"] for line in history] == [0] * 3 + [1] * 3
    resolved = resolve(override(read("quickstart"), {**SMALL, "method": "feddyn -> fedavg", "rounds": 8}))
    assert [stage[2] for stage in resolved.stages] == [6, 2]  # three quarters, as its authors do
    again = resolve(tomllib.loads(resolved.toml()))
    assert again.toml() == resolved.toml()
    assert [stage[2] for stage in resolve({**again_document(resolved), "rounds": 100}).stages] == [75, 25]


def again_document(experiment: Any) -> dict[str, Any]:
    return tomllib.loads(experiment.toml())


@pytest.mark.parametrize(
    ("method", "message"),
    [
        ("feddyn -> fedavg@100", r"the stages start after the rounds \[0, 100\] of 6"),
        ("feddyn -> fedavg@0", r"then.at = 0: need a share of the rounds \(0.75\) or a round \(150\)"),
        ("feddyn -> fedavg@2.5", r"then.at = 2.5"),
        ("feddyn -> fedavg@half", r"then.at = 'half'"),
        ("feddyn -> fedavgg", r"no method or schedule is called 'fedavgg'"),
    ],
)
def test_stages_that_make_no_sense_are_refused(method: str, message: str) -> None:
    with pytest.raises(RequestError, match=message):
        resolve(override(read("quickstart"), {"method": method, "rounds": 6}))
