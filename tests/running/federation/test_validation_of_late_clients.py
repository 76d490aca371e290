"""Evaluation at the sites together with clients that join late, skipped rounds, and rules without metrics."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("flwr")

from tests.engines.flower.loopback import Loopback, task_of
from tests.engines.flower.test_members import FakeLink, connecting, upload
from tests.engines.flower.test_roster import FIRST_ROUNDS, Late, late_roster
from tests.running.federation.test_validation import (
    EVERYBODY,
    RULE,
    Killed,
    assert_equal_lines,
    deploy,
    lines,
    make_task,
)

from kedge.config.task import Task
from kedge.core.errors import RequestError
from kedge.core.server import Rejection
from kedge.engines.engine import Order
from kedge.engines.flower.events import Events
from kedge.engines.flower.member_exchange import SKIPPED, MemberExchange, Settings
from kedge.engines.flower.messages import Content, Request
from kedge.engines.flower.population import Population
from kedge.engines.flower.roster import Joined, Roster
from kedge.engines.flower.server_engine import ServerEngine
from kedge.engines.sequential import Sequential
from kedge.engines.sums import Sums
from kedge.running.federation.joined_clients import sizes_only
from kedge.running.federation.serve import federated, wait_for_clients
from kedge.running.federation.uploads import upload_templates
from kedge.running.runner import run

NAMES = ("distributed.local.accuracy", "personal.local.accuracy")


def deploy_late(
    task: Task, folder: Path, exchange: Loopback, roster: Roster
) -> list[tuple[str, dict[str, Any]]]:
    """Train with the clients of the roster, each from its first round on; return the events."""
    events: list[tuple[str, dict[str, Any]]] = []
    folder.mkdir(exist_ok=True)
    task = replace(federated(task), federation=sizes_only(task.federation, roster))
    population = Population(len(EVERYBODY), roster, upload_templates(task))
    listener = Events(lambda kind, facts: events.append((kind, facts)))
    engine = ServerEngine(task.model, task.stages, population, exchange, print, listener)
    run(task, engine, folder, 1)
    return events


def simulate_with(engine: Sequential, task: Task, folder: Path) -> None:
    folder.mkdir()
    run(federated(task), engine, folder, 1)


def assert_measured(alone: Path, apart: Path, measuring: Sequence[Sequence[int]]) -> None:
    """The accuracies of the clients that evaluate are those of the simulation; the others have none."""
    found = lines(apart, "clients")
    assert [line["round"] for line in found] == [n for n, who in enumerate(measuring, 1) if who]
    for second in found:
        first, clients = lines(alone, "clients")[second["round"] - 1], measuring[second["round"] - 1]
        for name in NAMES:
            assert second[name] == [
                pytest.approx(v, abs=1e-12) if client in clients else None
                for client, v in enumerate(first[name])
            ]


def test_a_client_that_joins_late_evaluates_the_model_of_its_first_round(tmp_path: Path) -> None:
    task, roster = make_task("fedper"), late_roster(make_task("fedper"))
    simulate_with(Late(task.model, task.federation), task, tmp_path / "alone")
    deploy_late(task, tmp_path / "apart", Loopback(task, tmp_path, EVERYBODY), roster)
    joined = [[c for c in EVERYBODY if FIRST_ROUNDS[c] <= round + 1] for round in (1, 2, 3)]
    assert_measured(tmp_path / "alone", tmp_path / "apart", [*joined, EVERYBODY])
    alone, apart = (lines(tmp_path / run) for run in ("alone", "apart"))
    assert_equal_lines(alone[1:], apart[1:])  # all clients evaluate; client 1 has not trained before round 3
    assert "personal.local.accuracy.unseen" in apart[1]
    assert "personal.local.accuracy.unseen" not in apart[2]


class Recording(Loopback):
    """An exchange that keeps the facts of its messages that only evaluate."""

    def reach_evaluating(self, request: Callable[[int, bool], Request]) -> Mapping[int, Content | str]:
        self.facts: list[Mapping[str, Any]] = []

        def recorded(client: int, new: bool) -> Request:
            made = request(client, new)
            assert made.kind == "evaluate"
            self.facts.append(made.facts)
            return made

        return super().reach_evaluating(recorded)


def test_a_client_that_connects_in_the_last_round_evaluates_the_last_model_and_has_not_trained(
    tmp_path: Path,
) -> None:
    task = make_task("fedper", rounds=2)
    sizes = [len(samples) for samples in task.federation.clients]
    roster = Roster({client: Joined(size, 3 if client == 4 else 1) for client, size in enumerate(sizes)})
    exchange = Recording(task, tmp_path, EVERYBODY)
    events = deploy_late(task, tmp_path / "apart", exchange, roster)
    assert [facts["clients"] for kind, facts in events if kind == "round"] == [[0, 1, 2, 3]] * 2
    assert "rejected" not in dict(events)  # an absence is no rejected upload, in the table and as an event
    last = lines(tmp_path / "apart")[-1]
    assert [row["client"] for row in last["rejected"]] == [4]
    assert {"personal.local.accuracy.seen", "personal.local.accuracy.unseen"} <= last.keys()
    assert None not in lines(tmp_path / "apart", "clients")[-1][NAMES[0]]
    assert [facts["client"] for facts in exchange.facts] == [4, 3, 2, 1, 0]
    assert {(facts["joined"], facts["samples"]) for facts in exchange.facts} == {(5, sum(sizes))}


@pytest.mark.parametrize("killed", [2, 3])
def test_a_server_with_late_clients_and_a_line_that_waits_resumes_with_the_same_history(
    killed: int, tmp_path: Path
) -> None:
    task = make_task("fedper")
    whole, stopped = tmp_path / "whole", tmp_path / "stopped"
    deploy_late(task, whole, Loopback(task, tmp_path / "a", EVERYBODY), late_roster(task))

    class Dying(Loopback):
        def __call__(
            self, clients: Sequence[int], request: Callable[[int, bool], Request]
        ) -> Mapping[int, Content | str]:
            replies = super().__call__(clients, request)
            if request(0, False).facts["round"] == killed - 1:
                raise Killed
            return replies

    with pytest.raises(Killed):
        deploy_late(task, stopped, Dying(task, tmp_path / "b", EVERYBODY), late_roster(task))
    deploy_late(task, stopped, Loopback(task, tmp_path / "b", EVERYBODY), late_roster(task))
    for name in ("history", "clients"):
        assert_equal_lines(lines(whole, name), lines(stopped, name))


class Skipping(Loopback):
    """An exchange that skips round 2 after its clients have trained."""

    def __call__(
        self, clients: Sequence[int], request: Callable[[int, bool], Request]
    ) -> Mapping[int, Content | str]:
        replies = super().__call__(clients, request)
        return dict.fromkeys(clients, SKIPPED) if request(0, False).facts["round"] == 1 else replies


class WithoutRoundTwo(Sequential):
    def train(self, order: Order, clients: Sequence[int]) -> Sums:
        if order.round == 1:
            return Sums(rejected=tuple(Rejection(client, SKIPPED) for client in clients))
        return super().train(order, clients)


def test_a_skipped_round_brings_no_metrics_and_the_next_one_measures_models_without_it(
    tmp_path: Path,
) -> None:
    task = make_task("fedper")
    simulate_with(WithoutRoundTwo(task.model, task.federation), task, tmp_path / "alone")
    deploy(task, tmp_path / "apart", Skipping(task, tmp_path, EVERYBODY))
    assert_measured(tmp_path / "alone", tmp_path / "apart", [[], EVERYBODY, EVERYBODY, EVERYBODY])
    alone, apart = (lines(tmp_path / run) for run in ("alone", "apart"))
    assert not any(".local." in name for name in apart[0])
    assert_equal_lines(alone[1:], apart[1:])


def task_with_rule() -> Task:
    return task_of(
        "fedavg",
        participation={"per_round": 5},
        then=[{"method": "fedprox(mu=0.1)", "when": RULE}],
        evaluation={"local_test": 0.25},
    )


def test_a_rule_on_metrics_that_no_site_shares_ends_the_server_with_the_remedy(tmp_path: Path) -> None:
    task = task_with_rule()
    with pytest.raises(RequestError, match=r"no site shares its metrics.*--share-metrics at one site"):
        deploy(task, tmp_path / "apart", Loopback(task, tmp_path))

    class Deaf(Loopback):
        def reach_evaluating(self, request: Callable[[int, bool], Request]) -> Mapping[int, Content | str]:
            return dict.fromkeys(self.evaluating, "no answer by the deadline")

    with pytest.raises(RequestError, match=r"no site that shares its metrics has answered .* round 1"):
        deploy(task, tmp_path / "deaf", Deaf(task, tmp_path / "b", EVERYBODY))


def test_before_the_first_round_all_clients_without_shared_metrics_are_dismissed() -> None:
    task = task_with_rule()

    def waiting(clients: Sequence[int]) -> tuple[FakeLink, MemberExchange]:
        link = FakeLink(dict.fromkeys(clients, upload))
        return link, MemberExchange(connecting(link), Settings(1), print)

    link, exchange = waiting(EVERYBODY)
    with pytest.raises(RequestError, match="no site shares its metrics"):
        wait_for_clients(task, 5, exchange)
    assert [kind for _, kind in link.kinds[-5:]] == ["end"] * 5
    link, exchange = waiting([0, 1])  # the others join later, and may share
    wait_for_clients(task, 2, exchange)
    assert [kind for _, kind in link.kinds] == ["task", "task"]
