"""Parts of the engine on a cluster that need no cluster: shards, journal, and a worker in this process."""

from functools import partial

import torch
from tests.contract.problem import federation, network

from kedge.algorithms import scaffold
from kedge.core.algorithm import LocalTraining, Stage, Tune, logits
from kedge.core.optimizers import SGD
from kedge.core.server import broadcast, initial_server
from kedge.core.tree import tree_to
from kedge.engines.choice.choose import Choice, EngineOptions
from kedge.engines.engine import Order
from kedge.engines.ray.arrays import FederationArrays, order_with, sums_to_tensors, to_arrays
from kedge.engines.ray.journal import Journal, JournalRound
from kedge.engines.ray.shards import Shards
from kedge.engines.ray.shares import Share
from kedge.engines.ray.worker import Worker, WorkerSettings
from kedge.engines.sequential import Sequential
from kedge.measure.evaluation import score_client_models

STAGE = Stage(scaffold(), 1, LocalTraining(1, 4, SGD(0.1)))


def test_every_client_is_in_one_shard_and_the_samples_are_divided_evenly() -> None:
    shards = Shards(2, [9, 1, 1, 9, 4, 4])
    assert shards.divide(range(6), by_owner=True) == [[0, 2, 4], [1, 3, 5]]
    even = shards.divide(range(6), by_owner=False)
    assert sorted(client for part in even for client in part) == list(range(6))
    assert [sum(shards.work[client] for client in part) for part in even] == [14, 14]
    assert shards.divide([3], by_owner=False) == [[3], []]


def test_a_snapshot_replaces_the_rounds_before_it() -> None:
    journal = Journal()
    journal.add(JournalRound("order 0", [[0, 2], []]))
    journal.add(JournalRound("order 1", [[2], [1]]))
    assert journal.trained == [0, 1, 2]
    assert journal.rounds_of(0) == [("order 0", [0, 2]), ("order 1", [2])]
    assert journal.rounds_of(1) == [("order 1", [1])]
    memory = {"slots": {"c": {"w": torch.arange(3.0)}}}
    journal.take([(0, memory), (2, memory)], only_changed=True)
    journal.take([(2, {"slots": {"c": {"w": torch.zeros(3)}}})], only_changed=True)
    found = dict(journal.memories([0, 1, 2]))
    assert sorted(found) == [0, 2]
    assert torch.equal(found[0]["slots"]["c"]["w"], torch.arange(3.0))
    assert not found[2]["slots"]["c"]["w"].any()
    assert journal.rounds_of(0) == []
    journal.close()


def test_a_worker_trains_and_scores_as_its_engine_does() -> None:
    data, model = federation(), network("batch", of=STAGE.algorithm)
    params, buffers = (tree_to(part, data.dtype) for part in model.init(0))
    server = initial_server(STAGE.algorithm, model, params, buffers)
    order = Order(0, 0, 7, server.shared, server.buffers, broadcast(STAGE.algorithm, server))
    sent = order_with(order, to_arrays)
    worker = Worker()
    worker.setup(model, FederationArrays.of(data), WorkerSettings(1, Share(1, 0), "cpu", "fp64", 1))
    choice, messages = worker.choose(STAGE, 4, 1, EngineOptions("sequential"))
    assert (choice.name, messages) == ("sequential", [])
    worker.build(Choice("sequential", False, 0, ""))
    worker.begin(STAGE, to_arrays(params), frozenset())
    engine = Sequential(model, data)
    engine.begin(STAGE, params)
    expected, found = engine.train(order, [0, 2]).reply(), worker.train(sent, [0, 2])
    delta = sums_to_tensors(found, "cpu").reply().mean["delta"]
    assert all(torch.equal(v, expected.mean["delta"][k]) for k, v in delta.items())
    memories = worker.memories(range(4))
    assert sorted(memories) == ["0", "2"]
    worker.replace([0], {})
    assert sorted(worker.memories(range(4))) == ["2"]
    worker.replace([0], {"0": memories["0"]})
    assert sorted(worker.memories(range(4))) == ["0", "2"]
    ((client, tuned, _),) = worker.tune(sent, [2], Tune(1))
    assert client == 2
    assert tuned.keys() == params.keys()
    tested = [c for c, test in enumerate(data.local_tests) if len(test)]
    scores = worker.score(partial(score_client_models, logits), sent, tested, None)
    assert [clients for clients, _ in scores] == [[c] for c in tested]
    worker.reset()
    assert not vars(worker)
