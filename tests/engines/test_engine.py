"""The mean of uploads, and uploads that are not admitted to it."""

from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
from tests.contract.problem import ALL_CLIENTS, federation, network, perceptron
from torch import Tensor

from kedge.algorithms import fedavg, feddyn, scaffold
from kedge.config.task import Task
from kedge.core.algorithm import Algorithm, LocalTraining, Stage
from kedge.core.correction import Correction, Step
from kedge.core.errors import Diverged
from kedge.core.losses import cross_entropy
from kedge.core.model import Batch, Model
from kedge.core.optimizers import SGD
from kedge.core.server import Reply, broadcast, initial_server, upload_weights
from kedge.core.tree import Leaves, flatten, tree_to
from kedge.data.federation import Federation
from kedge.engines.engine import Order
from kedge.engines.sequential import Sequential
from kedge.engines.stack.stacked import Stacked
from kedge.engines.sums import Sums, Uploads, sum_uploads, weighted_sum
from kedge.running.runner import run

each_engine = pytest.mark.parametrize("kind", [Sequential, Stacked])
LOCAL = LocalTraining(2, 4, SGD(0.1))


def uploads(values: list[float], losses: list[float] | None = None, slots: Any = None) -> dict[str, Any]:
    """Stacked uploads of one number a client."""
    stacked = torch.tensor(values, dtype=torch.float64)[:, None]
    loss = torch.tensor(losses or [1.0] * len(values), dtype=torch.float64)
    return {"delta": {"w": stacked}, "buffers": {"m": 2 * stacked}, "slots": slots or {}, "loss": loss}


def facts(*sizes: float) -> Leaves:
    return {"examples": torch.tensor(sizes, dtype=torch.float64)}


def summed(
    tree: dict[str, Any],
    facts: Leaves,
    clients: list[int],
    flags: list[bool] | None = None,
    algorithm: Algorithm | None = None,
) -> Sums:
    """The sums of the uploads of these clients, one row each."""
    flags = flags or [True] * len(clients)
    uploads = Uploads(tree, facts, torch.tensor(flags), flags, tree["loss"].tolist())
    return sum_uploads(uploads, 0, clients, upload_weights(algorithm or fedavg()), frozenset({"w"}))


def test_mean_is_weighted_by_size() -> None:
    reply = summed(uploads([1.0, 5.0], [2.0, 4.0]), facts(30, 10), [0, 1]).reply()
    assert float(reply.mean["delta"]["w"]) == (30 * 1 + 10 * 5) / 40
    assert float(reply.mean["buffers"]["m"]) == 4
    assert reply.metrics == {"train.loss": 3.0}
    assert (reply.size, len(reply.rejected), set(reply.trained)) == (2, 0, {"w"})


def test_the_sums_of_parts_add_up_to_the_sums_of_all() -> None:
    """However they are grouped, and with empty sums anywhere."""
    nan = float("nan")
    whole = summed(uploads([1.0, 5.0, nan, 8.0]), facts(3, 1, 9, 4), [0, 1, 2, 3], [True, True, False, True])
    one = summed(uploads([1.0]), facts(3), [0])
    two = summed(uploads([5.0, nan]), facts(1, 9), [1, 2], [True, False])
    three = summed(uploads([8.0]), facts(4), [3])
    for parts in ((one + two) + three, one + (two + three), Sums() + one + two + three + Sums()):
        left, right = whole.reply(), parts.reply()
        torch.testing.assert_close(left.mean["delta"]["w"], right.mean["delta"]["w"])
        assert left._replace(mean={}) == right._replace(mean={})


def test_empty_sums_are_a_reply_of_size_zero() -> None:
    assert Sums().reply().size == 0


@pytest.mark.parametrize("runs", [(), (2,)], ids=["one run", "two runs"])
@pytest.mark.parametrize("shape", [(4, 3, 5, 5), (4, 3, 1, 1), (4, 3, 7), (4, 3), (4,), ()])
def test_sums_do_not_depend_on_how_rows_lie(shape: tuple[int, ...], runs: tuple[int, ...]) -> None:
    """On a GPU kernels are channels-last; their sum is contiguous, like the server's model."""
    rows = torch.randint(-9, 10, (6, *shape)).double()
    mass = torch.randint(0, 5, (*runs, 6)).double()
    expected = (mass.view(*runs, 6, *[1] * len(shape)) * rows).sum(len(runs))
    permuted = rows.transpose(1, -1).contiguous().transpose(1, -1) if len(shape) > 1 else rows
    if len(shape) == 4:
        permuted = rows.movedim(-3, -1).contiguous().movedim(-1, -3)
    for own in (rows, permuted):
        found = weighted_sum(mass, own)
        assert torch.equal(found, expected)
        assert found.is_contiguous()


def test_a_slot_has_weights_of_its_own() -> None:
    """Deltas by size, the correction's uploads equally."""

    def slots() -> dict[str, Any]:
        return {"control": {"c": {"w": torch.tensor([[1.0], [5.0]], dtype=torch.float64)}}}

    by_size = replace(scaffold(), weight=fedavg().weight)
    tree = uploads([1.0, 5.0], slots=slots())
    reply = summed(tree, facts(30, 10), [0, 1], algorithm=by_size).reply()
    assert float(reply.mean["delta"]["w"]) == 2
    assert float(reply.mean["slots"]["control"]["c"]["w"]) == 3


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_what_is_not_admitted_leaves_no_trace(bad: float) -> None:
    given = uploads([1.0, bad, 5.0], [2.0, bad, 4.0])
    reply = summed(given, facts(30, 1000, 10), [4, 7, 9], [True, False, True]).reply()
    assert float(reply.mean["delta"]["w"]) == 2
    assert reply.metrics == {"train.loss": 3.0}
    assert [(r.client, r.reason) for r in reply.rejected] == [(7, "not finite")]
    assert reply.size == 2


def test_nothing_admitted_is_a_reply_of_size_zero() -> None:
    reply = summed(uploads([float("nan")]), facts(3), [2], [False]).reply()
    assert (reply.size, reply.mean, reply.metrics) == (0, {}, {})
    assert [r.client for r in reply.rejected] == [2]


@dataclass(frozen=True)
class Spoiled(Correction):
    """Clients of some sizes compute a loss that is not a number."""

    sizes: tuple[int, ...]
    name = "spoiled"

    def loss(self, step: Step) -> Tensor:
        bad = torch.stack([step.facts["examples"] == size for size in self.sizes]).any()
        return torch.where(bad, torch.nan, 0.0) * step.params["1.weight"].sum()


def one_round(
    algorithm: Algorithm, kind: Any, model: Model, data: Federation, clients: list[int]
) -> tuple[Reply, Any]:
    engine = kind(model, data)
    params, buffers = (tree_to(part, data.dtype) for part in model.init(0))
    engine.begin(Stage(algorithm, 1, LOCAL), params, frozenset())
    server = initial_server(algorithm, model, params, buffers)
    sums = engine.train(Order(0, 0, 7, server.shared, server.buffers, broadcast(algorithm, server)), clients)
    return sums.reply(), engine


@each_engine
@pytest.mark.parametrize("base", [fedavg(), feddyn(0.1), scaffold()], ids=lambda a: a.name)
def test_a_spoiled_upload_is_dropped_and_named_and_the_others_go_on(kind: Any, base: Algorithm) -> None:
    """Client 2 (five samples) gives NaN: the reply is that of a round without it; it remembers nothing."""
    model, data = perceptron(), federation()
    spoiled = replace(base, corrections=(*base.corrections, Spoiled((5,))))
    reply, engine = one_round(spoiled, kind, model, data, [0, 1, 2, 3])
    without, _ = one_round(spoiled, kind, model, data, [0, 1, 3])
    assert [(r.client, r.reason) for r in reply.rejected] == [(2, "not finite")]
    assert reply.size == 3
    expected = flatten(without.mean)
    for k, v in flatten(reply.mean).items():
        torch.testing.assert_close(v, expected[k], rtol=1e-13, atol=1e-15)
    assert reply.metrics["train.loss"] == pytest.approx(without.metrics["train.loss"], rel=1e-13)
    assert "2" not in engine.save()
    if base.corrections:
        assert set(engine.save()) == {"0", "1", "3"}


@each_engine
def test_when_everybody_is_spoiled_nothing_is_left_but_the_names(kind: Any) -> None:
    spoiled = replace(fedavg(), corrections=(Spoiled((1, 2, 5, 9)),))
    reply, engine = one_round(spoiled, kind, perceptron(), federation(), [0, 1, 2, 3])
    assert (reply.size, reply.mean) == (0, {})
    assert [r.client for r in reply.rejected] == [0, 1, 2, 3]
    assert engine.save() == {}


@each_engine
def test_a_run_stops_at_a_spoiled_upload_or_leaves_it_out(kind: Any) -> None:
    model, data = perceptron(), federation()
    spoiled = replace(fedavg(), corrections=(Spoiled((5,)),))
    task = Task((Stage(spoiled, 2, LOCAL),), model, data)
    with pytest.raises(Diverged, match=r"fedavg diverged in round 1: client 2"):
        run(task, kind(model, data))
    progress = run(replace(task, on_divergence="drop"), kind(model, data))
    assert [[r["client"] for r in line["rejected"]] for line in progress.history] == [[2], [2]]
    assert all(v.isfinite().all() for v in progress.server.shared.values())


@each_engine
def test_a_round_without_an_admissible_upload_leaves_the_model_unchanged(kind: Any) -> None:
    model, data = perceptron(), federation()
    spoiled = replace(fedavg(), corrections=(Spoiled((1, 2, 5, 9)),))
    task = Task((Stage(spoiled, 2, LOCAL),), model, data, on_divergence="drop")
    progress = run(task, kind(model, data))
    start = model.init(0)[0]
    assert all(torch.equal(v, start[k].double()) for k, v in progress.server.shared.items())
    assert progress.round == 2


@each_engine
def test_the_training_loss_is_the_mean_over_clients_of_their_mean_over_steps(kind: Any) -> None:
    """With a learning rate of 1e-300 nothing moves, so each batch's loss can be taken at the start."""
    model, data = network("none"), federation()
    engine = kind(model, data)
    params = tree_to(model.init(0)[0], torch.float64)
    engine.begin(Stage(fedavg(), 1, LocalTraining(1, 100, SGD(1e-300))), params, frozenset())
    reply = engine.train(Order(0, 0, 0, params, {}, {}), ALL_CLIENTS[0]).reply()
    losses = []
    for own in data.clients:
        rows = torch.from_numpy(own)
        x = data.prepare(data.pool.x[rows])
        given = model_step(model, params, x, data.pool.y[rows])
        losses.append(float(cross_entropy(given)))
    assert reply.metrics["train.loss"] == pytest.approx(sum(losses) / len(losses), rel=1e-13)


def model_step(model: Model, params: Leaves, x: Tensor, y: Tensor) -> Step:
    batch = Batch(x, y, torch.ones(len(y), dtype=x.dtype), torch.zeros(2, dtype=torch.int64))
    out, _ = model.apply(params, {}, batch, True)
    return Step(params, params, batch, out, lambda leaves: out, {}, {}, {}, torch.tensor(0))
