"""The server: its first state, its update after a round, and the change of stages."""

from dataclasses import dataclass, replace

import pytest
import torch
from torch import nn

from kedge.algorithms import fedavg, feddyn, fedprox, scaffold
from kedge.core.algorithm import by_size, equal
from kedge.core.correction import Cohort, Correction
from kedge.core.model import Model
from kedge.core.selections import body
from kedge.core.server import (
    Reply,
    Server,
    broadcast,
    initial_server,
    next_stage_server,
    server_update,
    upload_weights,
    with_old_leaves,
)
from kedge.core.tree import Leaves, Tree, scale
from kedge.nn.from_module import from_module


@pytest.fixture
def model() -> Model:
    return from_module(nn.Sequential(nn.Linear(2, 3), nn.ReLU(), nn.Linear(3, 2)))


def filled(leaves: Leaves, value: float) -> Leaves:
    return {k: torch.full_like(v, value) for k, v in leaves.items()}


def reply(
    delta: Leaves, slots: dict[str, Tree], trained: frozenset[str] | None = None, size: int = 2
) -> Reply:
    mean = {"delta": delta, "buffers": {}, "slots": slots}
    return Reply(mean, size, frozenset(delta) if trained is None else trained, (), {})


def test_the_server_starts_with_the_shared_leaves_and_fresh_slots(model: Model) -> None:
    params, buffers = model.init(0)
    server = initial_server(replace(feddyn(0.1), shared=body), model, params, buffers)
    assert set(server.shared) == {"0.weight", "0.bias"}
    assert set(server.slots["dynamic"]["u"]) == set(server.shared)
    assert server.average is server.shared


def test_only_corrections_that_broadcast_send_something(model: Model) -> None:
    params, buffers = model.init(0)
    assert broadcast(fedavg(), initial_server(fedavg(), model, params, buffers)) == {}
    assert broadcast(feddyn(0.1), initial_server(feddyn(0.1), model, params, buffers)) == {"dynamic": {}}
    assert set(
        broadcast(scaffold(), initial_server(scaffold(), model, params, buffers))["control"]["c"]
    ) == set(params)


def test_fedavg_adds_the_mean_delta(model: Model) -> None:
    params, buffers = model.init(0)
    server = initial_server(fedavg(), model, params, buffers)
    after = server_update(fedavg(), server, reply(filled(params, 0.5), {}), 10, 0)
    assert all(torch.equal(after.shared[k], v + 0.5) for k, v in params.items())
    assert after.average is after.shared


def test_the_average_is_the_plain_mean_whatever_the_method_distributes(model: Model) -> None:
    """FedDyn, 2 of 10 clients, Δ̄ = 0.5: γ = w + 0.5, u = 0.2·0.5, θ = γ + u."""
    params, buffers = model.init(0)
    server = initial_server(feddyn(0.1), model, params, buffers)
    after = server_update(feddyn(0.1), server, reply(filled(params, 0.5), {"dynamic": {}}), 10, 0)
    for k, v in params.items():
        torch.testing.assert_close(after.average[k], v + 0.5)
        torch.testing.assert_close(after.shared[k], v + 0.6)
        torch.testing.assert_close(after.slots["dynamic"]["u"][k], torch.full_like(v, 0.1))


@dataclass(frozen=True)
class Times(Correction):
    """A server rule that multiplies the update and adds 1: the order of two such rules matters."""

    factor: float
    slot: str

    @property
    def name(self) -> str:  # type: ignore[override]  # two of the same class in one test
        return self.slot

    def server(self, update: Leaves, mean: Tree, state: Tree, cohort: Cohort) -> tuple[Leaves, Tree]:
        return {k: self.factor * v + 1 for k, v in update.items()}, {}


def test_the_server_chain_runs_from_left_to_right(model: Model) -> None:
    params, buffers = model.init(0)
    algorithm = replace(fedavg(), corrections=(Times(2.0, "first"), Times(10.0, "second")))
    server = initial_server(algorithm, model, params, buffers)
    after = server_update(algorithm, server, reply(filled(params, 3.0), {"first": {}, "second": {}}), 2, 0)
    for k, v in params.items():
        torch.testing.assert_close(after.shared[k], v + (10 * (2 * 3 + 1) + 1))


def test_leaves_that_trained_on_nobody_keep_model_and_state(model: Model) -> None:
    params, buffers = model.init(0)
    server = initial_server(scaffold(), model, params, buffers)
    old = server._replace(slots={"control": {"c": filled(params, 7.0)}})
    mean = reply(filled(params, 0.5), {"control": {"c": filled(params, 1.0)}}, frozenset({"0.weight"}))
    after = server_update(scaffold(), old, mean, 2, 0)
    for k, v in params.items():
        moved = k == "0.weight"
        assert torch.equal(after.shared[k], v) is not moved
        assert torch.equal(after.slots["control"]["c"][k], torch.full_like(v, 7.0)) is not moved


def test_with_old_leaves_replaces_tensors_at_every_depth() -> None:
    old = {"u": {"a": torch.tensor(1.0), "b": torch.tensor(2.0)}, "n": torch.tensor(3.0)}
    new = {"u": {"a": torch.tensor(10.0), "b": torch.tensor(20.0)}, "n": torch.tensor(30.0)}
    kept = with_old_leaves(old, new, frozenset({"b"}))
    assert [float(kept["u"]["a"]), float(kept["u"]["b"]), float(kept["n"])] == [10, 2, 30]


def test_the_next_stage_starts_from_the_distributed_model_and_drops_other_state(model: Model) -> None:
    params, buffers = model.init(0)
    server = Server(
        filled(params, 2.0), buffers, {"dynamic": {"u": filled(params, 5.0)}}, filled(params, 1.0), {}
    )
    after, kept = next_stage_server(feddyn(0.1), scaffold(), server, model)
    assert all(torch.equal(v, torch.full_like(v, 2.0)) for v in after.shared.values())
    assert set(after.slots) == {"control"}
    assert not any(v.any() for v in after.slots["control"]["c"].values())
    assert kept == frozenset()


def test_the_same_correction_in_both_stages_keeps_its_state(model: Model) -> None:
    """Another α is the same correction: u does not depend on it."""
    params, buffers = model.init(0)
    server = Server(params, buffers, {"dynamic": {"u": filled(params, 5.0)}}, params, {})
    after, kept = next_stage_server(feddyn(0.1), feddyn(0.01), server, model)
    assert kept == {"dynamic"}
    assert all(torch.equal(v, torch.full_like(v, 5.0)) for v in after.slots["dynamic"]["u"].values())


def test_a_correction_of_another_kind_in_the_same_slot_starts_afresh(model: Model) -> None:
    @dataclass(frozen=True)
    class Other(Correction):
        name = "dynamic"

        def init_server(self, shared: Leaves) -> Tree:
            return {"u": scale(3.0, filled(shared, 1.0))}

    params, buffers = model.init(0)
    server = Server(params, buffers, {"dynamic": {"u": filled(params, 5.0)}}, params, {})
    after, kept = next_stage_server(feddyn(0.1), replace(fedavg(), corrections=(Other(),)), server, model)
    assert kept == frozenset()
    assert float(after.slots["dynamic"]["u"]["0.bias"][0]) == 3


def test_leaves_that_become_shared_come_from_the_initial_model(model: Model) -> None:
    params, buffers = model.init(0)
    first = replace(fedavg(), shared=body)
    server = initial_server(first, model, params, buffers)
    server = server._replace(shared=filled(server.shared, 9.0))
    after, _ = next_stage_server(first, fedavg(), server, model)
    assert set(after.shared) == set(params)
    assert torch.equal(after.shared["2.weight"], params["2.weight"])
    assert float(after.shared["0.bias"][0]) == 9


def test_leaves_that_are_no_longer_shared_come_from_the_server(model: Model) -> None:
    params, buffers = model.init(0)
    server = initial_server(fedavg(), model, params, buffers)
    server = server._replace(shared=filled(server.shared, 9.0))
    after, _ = next_stage_server(fedavg(), replace(fedavg(), shared=body), server, model)
    assert set(after.own) == {"2.weight", "2.bias"}
    assert float(after.own["2.weight"][0, 0]) == 9


def test_every_part_of_an_upload_has_its_weight() -> None:
    assert upload_weights(fedavg()) == {"": by_size}
    assert upload_weights(fedprox(0.1)) == {"": by_size, "proximal": by_size}
    assert upload_weights(scaffold()) == {"": equal, "control": equal}
    facts = {"examples": torch.tensor([30.0, 10.0])}
    assert by_size(facts).tolist() == [30, 10]
    assert equal(facts).tolist() == [1, 1]


def test_a_correction_about_other_leaves_starts_afresh() -> None:
    """FedDyn over the body, then over everything: its u_i lack the head's leaves, so they are dropped."""
    model = from_module(nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2)))
    params, _ = model.init(0)
    part, whole = replace(feddyn(0.1), shared=body), feddyn(0.1)
    server, kept = next_stage_server(part, whole, initial_server(part, model, params, {}), model)
    assert kept == frozenset()
    assert set(server.slots["dynamic"]["u"]) == set(params)
    assert next_stage_server(whole, whole, initial_server(whole, model, params, {}), model)[1] == {"dynamic"}
