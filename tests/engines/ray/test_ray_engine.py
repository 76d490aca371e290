"""The engine on a Ray cluster trains as the engines of one process do, also if workers are lost."""

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from tests.contract.algorithms import ALGORITHMS
from tests.contract.problem import TOLERANCE, distance, federation, network
from tests.engines.ray.lethal import lethal

from kedge.algorithms import fedavg, scaffold
from kedge.audit.training import run_state, train_rounds
from kedge.core.algorithm import Algorithm, LocalTraining, Stage
from kedge.core.optimizers import SGD
from kedge.core.tree import Tree, flatten
from kedge.engines.choice.choose import Choice
from kedge.engines.engine import Order
from kedge.engines.ray import workers
from kedge.engines.ray.cluster import Cluster
from kedge.engines.ray.ray_engine import RayEngine
from kedge.engines.ray.shares import Share
from kedge.engines.ray.worker import WorkerSettings
from kedge.engines.sequential import Sequential
from kedge.engines.sums import Sums

ROOT = Path(__file__).parents[3]
LOCAL = LocalTraining(2, 4, SGD(0.1, weight_decay=1e-2), clip=1.0)
COHORTS = [[0, 1, 2, 3], [1, 3], [0, 1, 2], [3, 0]]
SETTINGS = WorkerSettings(2, Share(1, 0), "cpu", "fp64", 1)
STACKED, SEQUENTIAL = (Choice(name, False, 0, "") for name in ("stacked", "sequential"))

pytestmark = pytest.mark.slow


def end_state(
    cluster: Cluster,
    algorithm: Algorithm,
    choice: Choice = STACKED,
    messages: list[str] | None = None,
    make: type[RayEngine] = RayEngine,
) -> dict[str, object]:
    """The state after the rounds of COHORTS on two workers."""
    data, model = federation(), network("batch", of=algorithm)
    said = [] if messages is None else messages
    engine = make(cluster, model, data, SETTINGS, said.append)
    try:
        engine.build(choice)
        return run_state(train_rounds(algorithm, LOCAL, engine, model, data, COHORTS), engine)
    finally:
        engine.close()


def same_bits(left: Tree, right: Tree) -> bool:
    """Whether two states are equal to the last bit."""
    a, b = flatten(left), flatten(right)
    return a.keys() == b.keys() and all(torch.equal(v, b[k]) for k, v in a.items())


@pytest.mark.parametrize("name", ALGORITHMS)
def test_every_method_trains_as_on_one_process(cluster: Cluster, name: str) -> None:
    algorithm = ALGORITHMS[name]
    data, model = federation(), network("batch", of=algorithm)
    engine = Sequential(model, data)
    expected = run_state(train_rounds(algorithm, LOCAL, engine, model, data, COHORTS), engine)
    assert distance(expected, end_state(cluster, algorithm)) < TOLERANCE


@pytest.mark.parametrize("rounds", [(2,), (0, 3), (1, 1)], ids=str)
def test_a_run_ends_in_the_same_bits_if_workers_die_while_they_train(
    cluster: Cluster, tmp_path: Path, rounds: tuple[int, ...]
) -> None:
    """(1, 1): the replacement dies, too, or the other worker."""
    messages: list[str] = []
    undisturbed = end_state(cluster, lethal(tmp_path, ()), SEQUENTIAL, messages)
    assert not messages
    disturbed = end_state(cluster, lethal(tmp_path, rounds), SEQUENTIAL, messages)
    assert len(messages) == len(rounds)
    assert len(list(tmp_path.glob("death *"))) == len(rounds)
    assert same_bits(undisturbed, disturbed)


def printed_by(script: str, *words: str) -> list[str]:
    """The words of the last line that a script of this folder prints, in a process of its own."""
    command = [sys.executable, "-m", f"tests.engines.ray.{script}", *words]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()[-1].split()


class CrowdedEngine(RayEngine):
    """Another job takes the core of the worker that dies first, and ends before round 3."""

    def build(self, choice: Choice) -> None:
        class Job:
            pass

        super().build(choice)
        self.job = self.ray.remote(num_cpus=1)(Job).remote()  # waits in the cluster's queue

    def train(self, order: Order, clients: Sequence[int]) -> Sums:
        if order.round == 3:
            self.ray.kill(self.job)
            if self.workers.queued:
                self.ray.get(self.workers.queued[1])
        return super().train(order, clients)


LOST = "a worker was lost: rebuilding its {} shard(s) on "


@pytest.mark.parametrize(
    ("rounds", "expected"),
    [
        ((1,), [LOST.format(1) + "the 1 remaining", "a new worker was started: rebuilding a shard on it"]),
        ((2, 0), [LOST.format(1) + "the 1 remaining", LOST.format(2) + "a new worker"]),
    ],
    ids=["one worker dies", "the other dies when it rebuilds the shard"],
)
def test_the_remaining_workers_train_the_shards_while_the_cluster_has_no_room(
    cluster: Cluster,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    rounds: tuple[int, ...],
    expected: list[str],
) -> None:
    undisturbed = end_state(cluster, lethal(tmp_path, ()), SEQUENTIAL)
    for _, handle in cluster.idle:
        cluster.ray.kill(handle)  # else the idle workers are used, and the job takes a core
    cluster.idle.clear()
    monkeypatch.setattr(workers, "START_SECONDS", 3.0)
    messages: list[str] = []
    disturbed = end_state(cluster, lethal(tmp_path, rounds), SEQUENTIAL, messages, make=CrowdedEngine)
    assert messages[:2] == expected
    assert same_bits(undisturbed, disturbed)


def test_a_run_without_workers_ends_with_a_remedy(
    cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for _, handle in cluster.idle:
        cluster.ray.kill(handle)
    cluster.idle.clear()
    monkeypatch.setattr(workers, "START_SECONDS", 1.0)
    monkeypatch.setattr(workers, "LAST_START_SECONDS", 0.01)
    with pytest.raises(workers.WorkersLostError, match="The run can be resumed"):
        end_state(cluster, lethal(tmp_path, (2, 0)), SEQUENTIAL, make=CrowdedEngine)


def test_a_lost_machine_of_the_cluster_changes_nothing() -> None:
    """In a process of its own, because a process is connected to one cluster."""
    lost, distance_to_sequential = printed_by("lost_machine")
    assert int(lost) >= 1
    assert float(distance_to_sequential) < TOLERANCE


@pytest.mark.parametrize("method", ["fedavg", "scaffold"])
def test_the_memory_of_driver_and_store_does_not_grow_with_the_clients(method: str) -> None:
    """150 clients a round; SCAFFOLD's memories alone are 150 times the size of the model.

    Neither training nor writing nor loading a checkpoint needs all of them at a time.
    """
    trained, saved, loaded, store, file, _ = map(float, printed_by("memory_use", "150", method))
    assert trained <= saved <= loaded < 80
    assert store < 140
    assert file > (150 if method == "scaffold" else 0)


def test_a_memory_survives_a_new_stage_and_a_lost_worker(cluster: Cluster) -> None:
    """The second stage keeps SCAFFOLD's c_i; the worker that has them dies at its start."""
    states = []
    for kills in (False, True):
        algorithm, data = scaffold(), federation()
        model = network("batch", of=algorithm)
        engine = RayEngine(cluster, model, data, SETTINGS)
        engine.build(SEQUENTIAL)
        train_rounds(algorithm, LOCAL, engine, model, data, COHORTS[:1])
        if kills:
            cluster.ray.kill(engine.workers.processes[0].handle)
        params, _ = model.init(0)
        kept = frozenset(c.name for c in algorithm.corrections)
        engine.begin(Stage(algorithm, 1, LOCAL), {k: v.double() for k, v in params.items()}, kept)
        states.append(dict(engine.save()))
        engine.begin(Stage(fedavg(), 1, LOCAL), {k: v.double() for k, v in params.items()}, frozenset())
        assert not any(memory.get("slots") for memory in engine.save().values())
        engine.close()
    assert flatten(states[0])
    assert same_bits(*states)
