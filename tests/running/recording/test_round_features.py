"""A run's features of a round equal the features of the models themselves."""

import torch
from tests.contract.problem import federation, network
from tests.contract.resuming import LOCAL

import kedge
from kedge.algorithms import fedavg, feddyn, fedper
from kedge.config.diagnostics import evenly_spaced
from kedge.config.task import Task
from kedge.core.algorithm import Algorithm, Stage
from kedge.core.sampling import Participation
from kedge.core.server import broadcast, initial_server
from kedge.core.tree import add, scale, sub, tree_to
from kedge.engines.engine import Order
from kedge.engines.sequential import Sequential
from kedge.engines.stack.stacked import Stacked
from kedge.measure.activations import model_features, unit_outputs
from kedge.measure.features import interaction
from kedge.measure.similarity import linear_cka
from kedge.running.recording.round_features import local_models
from kedge.running.runner import run

MEASURE = kedge.Measure(features_every=1, components=3, correlation=0.8)


def task_of(algorithm: Algorithm, rounds: int = 1) -> Task:
    model = network("batch", of=algorithm)
    stage = Stage(algorithm, rounds, LOCAL)
    return Task((stage,), model, federation((5, 9, 6)), Participation(), measure=MEASURE)


def test_the_numbers_are_those_of_the_round_s_models() -> None:
    """The sent model, three local models and the next global model; FedDyn's γ before h is checked apart."""
    task = task_of(feddyn(0.1))
    model, test = task.model, task.federation.test
    assert test is not None
    progress = run(task, Stacked(model, task.federation))
    line, after = progress.history[0], progress.server

    params, buffers = (tree_to(v, torch.float64) for v in model.init(0))
    server = initial_server(task.stages[0].algorithm, model, params, buffers)
    order = Order(0, 0, 0, params, buffers, broadcast(task.stages[0].algorithm, server))
    place = Sequential(model, task.federation)
    place.begin(task.stages[0], params)
    local = [*local_models(task, place, task.stages[0], order, [0, 1, 2], server)]
    models = [(params, buffers), *local, (after.shared, after.buffers), (after.average, after.buffers)]
    features = [model_features(model, *one, test.x, task.federation.prepare) for one in models]

    found = interaction(features[:5], MEASURE.clusters)
    assert line["features.models"] == 5
    assert line["features.clusters"] == found.clusters
    assert line["features.components"] == found.components
    counts = found.frequency.tolist()
    assert line["features.frequency"] == [counts.count(models) for models in range(1, 6)]
    assert line["features.retained.local"] == sum(found.shared(0, m) for m in (1, 2, 3)) / 3
    assert line["features.retained.next"] == found.shared(0, 4)
    assert line["features.retained.average"] == interaction(features, MEASURE.clusters).shared(0, 5)
    assert line["features.share"] == float(found.tensor().double().mean())
    units = [unit_outputs(model, *one, test.x, task.federation.prepare)[1] for one in local]
    pairs = [linear_cka(units[i], units[j]) or 0.0 for i, j in ((0, 1), (0, 2), (1, 2))]
    assert abs(line["features.cka.clients.unit1"] - sum(pairs) / 3) < 1e-9


def test_local_models_are_those_that_the_round_averages() -> None:
    """θ + the mean update is the plain average; another engine than the run's trained the local models."""
    task = task_of(fedavg("uniform"))
    place = Stacked(task.model, task.federation)
    after = run(task, place).server
    params, buffers = (tree_to(v, torch.float64) for v in task.model.init(0))
    server = initial_server(task.stages[0].algorithm, task.model, params, buffers)
    order = Order(0, 0, 0, params, buffers, {})
    local = [own for own, _ in local_models(task, place, task.stages[0], order, [0, 1, 2], server)]
    mean = scale(1 / 3, add(add(sub(local[0], params), sub(local[1], params)), sub(local[2], params)))
    worst = max(float((after.average[k] - params[k] - v).abs().max()) for k, v in mean.items())
    assert worst < 1e-12
    assert place.save() == {}


def test_a_personal_head_is_the_client_s_own() -> None:
    task = task_of(fedper(), rounds=2)
    place = Sequential(task.model, task.federation)
    progress = run(task, place)
    server = progress.server
    order = Order(2, 2, 0, server.shared, server.buffers, {})
    (own, _), (other, _) = local_models(task, place, task.stages[0], order, [0, 1], server)
    head = task.model.units[-1][0]
    assert not own[head].equal(other[head])
    assert not own[head].equal(place.personal(0, server.shared, server.buffers)[0][head])  # one round later


def test_without_a_common_test_set_local_tests_are_looked_at() -> None:
    settings = {"rounds": 1, "engine.name": "sequential", "model.name": "mlp", "measure.features_every": 1}
    merged = {**settings, "evaluation.local_test": 0.25, "evaluation.local": "merged"}
    line = kedge.run("quickstart", progress=False, out=None, **merged).history[0]
    assert line["features.clusters"] > 0


def test_some_samples_are_taken_from_all_over_the_set() -> None:
    x = torch.arange(100)[:, None]
    assert evenly_spaced(x, 3).flatten().tolist() == [0, 50, 99]
    assert evenly_spaced(x, 100) is x
    assert len(set(evenly_spaced(x, 7).flatten().tolist())) == 7
