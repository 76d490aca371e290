"""Evaluation on the clients' own validation sets: the numbers of a simulation, under the same names."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("flwr")

from tests.engines.flower.loopback import Loopback, Tampering, roster_of_all, server_engine, task_of

from kedge.config.task import Task
from kedge.engines.flower.messages import Content, Request
from kedge.engines.sequential import Sequential
from kedge.running.federation.joined_clients import sizes_only
from kedge.running.federation.serve import federated
from kedge.running.folders.folder import read_lines
from kedge.running.progress import Observer
from kedge.running.runner import run

EVERYBODY = range(5)
RULE = "plateau(metric='distributed.local.accuracy', patience=1, by=1)"
CASES: dict[str, dict[str, Any]] = {
    "fedavg": {},
    "scaffold": {},
    "fedper": {},
    "fedrod": {},
    "lg-fedavg": {},
    "fedbabu": {},
    "fedexp": {},
    "fedrod->fedavg@2": {},
    "fedper->fedavg@2": {},
    "fedavg, then by a rule fedprox": {
        "then": [{"method": "fedprox(mu=0.1)", "when": RULE}],
        "evaluation": {"local_test": 0.25},
    },
    "fedper, every second round": {"evaluation": {"every": 2, "local_test": 0.25}},
    "fedrep, tuned every second round": {
        "evaluation": {"local_test": 0.25, "tune": "head", "tune_epochs": 2, "tune_every": 2}
    },
    "fedbug(ratio=0.4)+scaffold, own statistics": {
        "data": {"name": "digits"},
        "model": {"name": "small-cnn", "norm": "batch"},
        "training": {"epochs": 1, "batch": 64, "statistics": "local"},
    },
    "fedavg, shared statistics": {
        "data": {"name": "digits"},
        "model": {"name": "small-cnn", "norm": "batch"},
        "training": {"epochs": 1, "batch": 64, "statistics": "shared"},
    },
}


def make_task(case: str, per_round: int = 5, rounds: int = 4) -> Task:
    method = case.partition(", ")[0]
    return task_of(
        method,
        rounds,
        **{
            "participation": {"per_round": per_round},
            "evaluation": {"local_test": 0.25},
            **CASES.get(case, {}),
        },
    )


def on_sites(task: Task) -> Task:
    """The task as the server of a federation has it."""
    return replace(federated(task), federation=sizes_only(task.federation, roster_of_all(task)))


def simulate(task: Task, folder: Path) -> None:
    folder.mkdir()
    run(task, Sequential(task.model, task.federation), folder, 1)


def deploy(task: Task, folder: Path, exchange: Loopback, observer: Observer | None = None) -> None:
    folder.mkdir(exist_ok=True)
    run(on_sites(task), server_engine(task, exchange), folder, 1, observer=observer)


def metrics(line: Mapping[str, Any], part: str) -> dict[str, float]:
    return {k: v for k, v in line.items() if f".{part}." in k}


def assert_equal_lines(left: Sequence[Any], right: Sequence[Any]) -> None:
    assert [line["round"] for line in left] == [line["round"] for line in right]
    for first, second in zip(left, right, strict=True):
        assert first.keys() == second.keys()
        assert first.get("rejected") == second.get("rejected")
        for name, value in first.items():
            if name not in ("round", "time", "rejected"):
                assert second[name] == pytest.approx(value, abs=1e-12), (first["round"], name)


def lines(folder: Path, name: str = "history") -> list[dict[str, Any]]:
    return read_lines(folder / f"{name}.jsonl")


@pytest.mark.parametrize("case", CASES)
def test_all_clients_together_measure_the_numbers_of_the_simulation(case: str, tmp_path: Path) -> None:
    task = make_task(case)
    simulate(task, tmp_path / "alone")
    deploy(task, tmp_path / "apart", Loopback(task, tmp_path, EVERYBODY))
    for name in ("history", "clients"):
        alone, apart = (lines(tmp_path / run, name) for run in ("alone", "apart"))
        others = [
            {
                k: v
                for k, v in line.items()
                if not k.startswith(("average.local", "last-two.local")) or k in sent
            }
            for line, sent in zip(alone, apart, strict=True)
        ]
        assert_equal_lines(others, apart)
    last = lines(tmp_path / "apart")[-1]
    assert {"distributed.local.accuracy", "personal.local.loss"} <= last.keys()
    assert ("average.local.accuracy" in last) == (task.stages[0].algorithm.name != "fedexp")


def test_participants_measure_the_model_of_the_round_before_and_all_clients_the_last(tmp_path: Path) -> None:
    task = make_task("fedper", per_round=2)
    simulate(task, tmp_path / "alone")
    deploy(task, tmp_path / "apart", Loopback(task, tmp_path, EVERYBODY))
    alone, apart = (lines(tmp_path / run, "clients") for run in ("alone", "apart"))
    measuring = [task.participants(round) for round in (1, 2, 3)] + [list(EVERYBODY)]
    for first, second, clients in zip(alone, apart, measuring, strict=True):
        for name in ("distributed.local.accuracy", "personal.local.accuracy"):
            assert second[name] == [
                pytest.approx(v, abs=1e-12) if client in clients else None
                for client, v in enumerate(first[name])
            ]


def test_a_site_that_does_not_share_its_metrics_writes_them_down_and_sends_nothing(tmp_path: Path) -> None:
    task = make_task("fedper")
    sent: list[str] = []

    class Watched(Loopback):
        def __call__(
            self, clients: Sequence[int], request: Callable[[int, bool], Request]
        ) -> Mapping[int, Content | str]:
            replies = super().__call__(clients, request)
            sent.extend(f"{c} {fact}" for c, r in replies.items() for fact in r.facts)  # type: ignore[union-attr]
            return replies

    simulate(task, tmp_path / "alone")
    deploy(task, tmp_path / "apart", Watched(task, tmp_path, [1]))
    assert {text for text in sent if "score." in text} == {"1 score.distributed", "1 score.personal"}
    (tmp_path / "2" / "metrics.jsonl").read_text()
    for round, line in enumerate(lines(tmp_path / "alone", "clients")):
        for client in EVERYBODY:
            logged = json.loads((tmp_path / str(client) / "metrics.jsonl").read_text().splitlines()[round])
            assert logged["round"] == line["round"]
            for name in ("distributed.local.accuracy", "personal.local.accuracy"):
                assert logged[name] == pytest.approx(line[name][client], abs=1e-12)
    for line in lines(tmp_path / "apart", "clients"):
        found = line["personal.local.accuracy"]
        assert [value is not None for value in found] == [False, True, False, False, False]


def test_without_a_site_that_shares_no_line_waits_and_none_has_local_metrics(tmp_path: Path) -> None:
    task, written = make_task("fedper"), list[int]()
    observer = Observer(line=lambda line: written.append(len(lines(tmp_path / "apart"))))
    deploy(task, tmp_path / "apart", Loopback(task, tmp_path), observer)
    assert written == [1, 2, 3, 4]
    assert not any(".local." in name for line in lines(tmp_path / "apart") for name in line)


class Killed(Exception):
    """The server ends."""


@pytest.mark.parametrize("killed", [2, 3, 5])
def test_a_line_that_waits_survives_the_end_of_the_server(killed: int, tmp_path: Path) -> None:
    task = make_task("fedper")
    whole, stopped = tmp_path / "whole", tmp_path / "stopped"
    deploy(task, whole, Loopback(task, tmp_path / "a", EVERYBODY))

    class Dying(Loopback):
        calls = 0

        def __call__(
            self, clients: Sequence[int], request: Callable[[int, bool], Request]
        ) -> Mapping[int, Content | str]:
            replies = super().__call__(clients, request)
            self.calls += 1
            if self.calls == killed:
                raise Killed
            return replies

    dying = Dying(task, tmp_path / "b", EVERYBODY)
    with pytest.raises(Killed):
        deploy(task, stopped, dying)
    resumed = Loopback(task, tmp_path / "b", EVERYBODY)  # the clients start again, too
    deploy(task, stopped, resumed)
    for name in ("history", "clients"):
        assert_equal_lines(lines(whole, name), lines(stopped, name))


BAD_SCORES: dict[str, list[float]] = {
    "another model": [10.0, 3.0, 1.0],
    "more correct than samples": [10.0, 11.0, 1.0],
    "a part of a sample": [10.5, 3.0, 1.0],
    "no samples": [0.0, 0.0, 0.0],
    "a negative loss": [10.0, 3.0, -1.0],
    "two numbers": [10.0, 3.0],
}


@pytest.mark.parametrize("name", BAD_SCORES)
def test_scores_that_are_not_possible_are_left_out_and_reported(name: str, tmp_path: Path) -> None:
    def with_bad_score(reply: Content) -> Content:
        if "score.distributed" not in reply.facts:
            return reply
        fact = "score.other" if name == "another model" else "score.distributed"
        return reply._replace(facts={**reply.facts, fact: BAD_SCORES[name]})

    task, said = make_task("fedavg", rounds=2), list[str]()
    (tmp_path / "apart").mkdir()
    exchange = Tampering(task, tmp_path, EVERYBODY)
    exchange.tamper = with_bad_score
    engine = server_engine(task, exchange, said.append)
    run(on_sites(task), engine, tmp_path / "apart", 1)
    assert len([text for text in said if text.startswith("client 0: its metrics are left out")]) == 2
    for line in lines(tmp_path / "apart", "clients"):
        assert [v is None for v in line["distributed.local.accuracy"]] == [True, False, False, False, False]
