"""Clients that join late: the sizes that a round uses, the counted costs, the recorded absences."""

from collections.abc import Sequence
from pathlib import Path

import pytest
import torch

pytest.importorskip("flwr")

from dataclasses import replace

from tests.engines.flower.loopback import Loopback, task_of
from tests.engines.flower.test_server_engine import assert_same_bits, train

from kedge.config.task import Task
from kedge.core.errors import RequestError
from kedge.core.server import NOT_JOINED, Rejection
from kedge.engines.engine import Order
from kedge.engines.flower.messages import MessageError
from kedge.engines.flower.population import Population
from kedge.engines.flower.roster import Joined, Roster
from kedge.engines.flower.server_engine import ServerEngine
from kedge.engines.sequential import Sequential
from kedge.engines.sums import Sums
from kedge.running.federation.joined_clients import read_joined, roster_of, sizes_only
from kedge.running.federation.serve import check_start, federated
from kedge.running.federation.uploads import upload_templates
from kedge.running.progress import Observer
from kedge.running.recording.round_costs import CostCounter, RoundPosition
from kedge.running.runner import run

FIRST_ROUNDS = (1, 3, 1, 1, 2)  # of the five clients
METHODS = ("feddyn(alpha=0.1, scaling='data')", "scaffold", "fedavg->feddyn(alpha=0.1)@2")
EVERYONE = {"per_round": 5}


def late_roster(task: Task) -> Roster:
    rows = zip(task.federation.clients, FIRST_ROUNDS, strict=True)
    return Roster({client: Joined(len(samples), first) for client, (samples, first) in enumerate(rows)})


class Late(Sequential):
    """The sequential engine with the clients that have joined, and their sizes alone."""

    def train(self, order: Order, clients: Sequence[int]) -> Sums:
        joined = [client for client in clients if FIRST_ROUNDS[client] <= order.round + 1]
        sizes = torch.tensor([float(len(samples)) for samples in self.federation.clients]).double()
        self.facts = {**self.facts, "relative_size": sizes * len(joined) / sizes[joined].sum()}
        absent = (Rejection(client, NOT_JOINED) for client in clients if client not in joined)
        return super().train(order, joined) + Sums(rejected=tuple(absent))


def server_engine(task: Task, exchange: Loopback, roster: Roster) -> ServerEngine:
    population = Population(5, roster, upload_templates(task))
    return ServerEngine(task.model, task.stages, population, exchange, print)


@pytest.mark.parametrize(
    "method", ["feddyn(alpha=0.1, scaling='data')", "scaffold", "fedavg->feddyn(alpha=0.1)@2"]
)
def test_a_round_uses_the_clients_that_had_joined_before_it_and_their_sizes(
    method: str, tmp_path: Path
) -> None:
    task = federated(task_of(method, participation=EVERYONE))
    roster = late_roster(task)
    served = replace(task, federation=sizes_only(task.federation, roster))
    apart, lines = train(served, server_engine(task, Loopback(task, tmp_path), roster))
    alone, _ = train(task, Late(task.model, task.federation))
    assert_same_bits(alone.server._asdict(), apart.server._asdict())
    absent = [[row["client"] for row in line["rejected"]] for line in lines]
    assert absent == [[1, 4], [1], [], []]
    assert {row["reason"] for line in lines for row in line["rejected"]} == {NOT_JOINED}


def test_the_costs_are_those_of_the_clients_that_have_joined_also_after_resuming(tmp_path: Path) -> None:
    task = federated(task_of("fedbug(ratio=0.4)+feddyn(alpha=0.1)", 4, participation=EVERYONE))
    roster, exchange = late_roster(task), Loopback(task, tmp_path / "clients")
    served = replace(task, federation=sizes_only(task.federation, roster))
    sent: list[tuple[int, int]] = []
    observer = Observer(line=lambda line: sent.append((exchange.down, exchange.up)))
    lines = run(served, server_engine(task, exchange, roster), observer=observer).history
    assert sent == [(line["cost"]["bytes_down"], line["cost"]["bytes_up"]) for line in lines]
    sizes = [len(samples) for samples in task.federation.clients]
    starts = list(zip(sizes, FIRST_ROUNDS, strict=True))
    by_round = [sum(size for size, first in starts if first <= round) for round in range(1, 5)]
    assert [line["cost"]["samples"] for line in lines] == [2 * samples for samples in by_round]  # two epochs
    resumed = CostCounter(served, lines[:3])
    assert resumed.count_round(RoundPosition(0, 3, 3), range(5))._asdict() == lines[3]["cost"]


def test_a_client_that_connects_in_a_round_takes_part_in_the_next_and_a_new_process_knows_it(
    tmp_path: Path,
) -> None:
    roster = roster_of(tmp_path)
    assert not roster.started
    roster.join(0, 10)
    roster.start()
    assert roster.begin_round(4) == {0: 10}
    roster.join(2, 30)
    restarted = roster_of(tmp_path)
    assert restarted.started
    assert restarted.begin_round(4) == {0: 10}
    assert restarted.begin_round(5) == {0: 10, 2: 30}
    assert restarted.joined[2] == read_joined(tmp_path / "clients.json")[2] == Joined(30, 6)
    restarted.join(2, 30)  # it has connected again
    assert restarted.joined[2].first_round == 6
    with pytest.raises(MessageError, match="client 2 has 31 samples; it had 30 when it joined"):
        restarted.join(2, 31)


def test_a_start_with_more_clients_than_the_experiment_has_is_refused() -> None:
    check_start(None, 3)
    check_start(3, 3)
    with pytest.raises(RequestError, match="--start-with 4: the experiment has 3 clients"):
        check_start(4, 3)
