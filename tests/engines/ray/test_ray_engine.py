"""The engine on a Ray cluster trains as the engines of one process do, also if workers are lost."""

from collections.abc import Iterator
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
from kedge.engines.ray import workers
from kedge.engines.ray.cluster import Cluster, Share
from kedge.engines.ray.ray_engine import RayEngine
from kedge.engines.ray.worker import WorkerSettings
from kedge.engines.sequential import Sequential

LOCAL = LocalTraining(2, 4, SGD(0.1, weight_decay=1e-2), clip=1.0)
COHORTS = [[0, 1, 2, 3], [1, 3], [0, 1, 2], [3, 0]]
SETTINGS = WorkerSettings(2, Share(1, 0), "cpu", "fp64", 1)
STACKED, SEQUENTIAL = (Choice(name, False, 0, "") for name in ("stacked", "sequential"))

pytestmark = pytest.mark.slow


def end_state(
    cluster: Cluster, algorithm: Algorithm, choice: Choice = STACKED, messages: list[str] | None = None
) -> dict[str, object]:
    """The state after the rounds of COHORTS on two workers."""
    data, model = federation(), network("batch", of=algorithm)
    said = [] if messages is None else messages
    engine = RayEngine(cluster, model, data, SETTINGS, said.append)
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


@pytest.mark.parametrize("rounds", [[2], [0, 3], [1, 1]], ids=str)
def test_a_run_ends_in_the_same_bits_if_workers_die_while_they_train(
    cluster: Cluster, tmp_path: Path, rounds: list[int]
) -> None:
    """[1, 1]: the replacement dies, too, when it repeats the round."""
    messages: list[str] = []
    undisturbed = end_state(cluster, lethal(tmp_path / "none", []), SEQUENTIAL, messages)
    assert not messages
    disturbed = end_state(cluster, lethal(tmp_path / "deaths", rounds), SEQUENTIAL, messages)
    assert len(messages) == len(rounds)
    assert not (tmp_path / "deaths").read_text()
    assert same_bits(undisturbed, disturbed)


@pytest.fixture
def no_room(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Another job waits for a core of the cluster, so that a worker's core is not free when it dies."""
    for _, handle in cluster.idle:
        cluster.ray.kill(handle)
    cluster.idle.clear()
    monkeypatch.setattr(workers, "START_SECONDS", 3.0)
    started: list[object] = []

    class Job:
        def ready(self) -> bool:
            return True

    def wait_for_a_core(self: RayEngine, *arguments: object) -> None:
        original(self, *arguments)  # type: ignore[arg-type]
        started.append(cluster.ray.remote(num_cpus=1)(Job).remote())

    original = RayEngine.build
    monkeypatch.setattr(RayEngine, "build", wait_for_a_core)
    yield
    for job in started:
        cluster.ray.kill(job)


@pytest.mark.usefixtures("no_room")
def test_the_remaining_workers_take_over_if_the_cluster_has_no_room(
    cluster: Cluster, tmp_path: Path
) -> None:
    messages: list[str] = []
    disturbed = end_state(cluster, lethal(tmp_path / "deaths", [2]), SEQUENTIAL, messages)
    assert messages == ["a worker was lost: rebuilding its 1 shard(s) on the 1 remaining"]
    data, algorithm = federation(), lethal(tmp_path / "none", [])
    model = network("batch", of=algorithm)
    engine = Sequential(model, data)
    expected = run_state(train_rounds(algorithm, LOCAL, engine, model, data, COHORTS), engine)
    assert distance(expected, disturbed) < TOLERANCE


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
        states.append(engine.save())
        engine.begin(Stage(fedavg(), 1, LOCAL), {k: v.double() for k, v in params.items()}, frozenset())
        assert not any(memory.get("slots") for memory in engine.save().values())
        engine.close()
    assert flatten(states[0])
    assert same_bits(*states)
