"""Stages of different methods: every one first and second, and what each hands over to the next."""

from dataclasses import replace
from itertools import product
from pathlib import Path

import pytest
import torch
from tests.contract.composing import (
    ENGINES,
    LOCAL,
    Kind,
    Ran,
    apart,
    one_of_several,
    resumes,
    task_of,
)
from tests.contract.problem import TOLERANCE, distance, everything, network

from kedge.algorithms import (
    METHOD_REGISTRY,
    fedavg,
    feddyn,
    feddyn_no_h,
    fedper,
    fedprox,
    fedpvr,
    fedrep,
    fedrod,
    scaffold,
)
from kedge.algorithms.fedrod import PERSONAL
from kedge.config.task import Task
from kedge.core.algorithm import Algorithm, model_for
from kedge.core.optimizers import SGD
from kedge.core.selections import head
from kedge.core.tree import Tree, flatten
from kedge.running.progress import Progress
from kedge.running.runner import next_stage

SWITCHES = list(
    dict.fromkeys(
        pair
        for one in METHOD_REGISTRY
        for pair in ((one, "fedavg"), ("fedavg", one), ("feddyn", one), (one, "feddyn"))
    )
)
each_engine = pytest.mark.parametrize("kind", ENGINES)


@pytest.mark.parametrize(
    ("number", "first", "second"),
    [(number, *pair) for number, pair in enumerate(SWITCHES)],
    ids=[" -> ".join(pair) for pair in SWITCHES],
)
def test_every_method_is_a_first_and_a_second_stage_on_both_engines_and_resumes(
    number: int, first: str, second: str, tmp_path: Path
) -> None:
    """A method's pairs stand one after another: it is stopped before, at and after the switch."""
    methods = [one_of_several(first), one_of_several(second)]
    task = task_of(methods, [2, 2], "shared" if number // 6 % 2 else "local")
    runs = [Ran(task, kind) for kind in ENGINES]
    assert [line["method"] for line in runs[0].history] == [first, first, second, second]
    assert distance(runs[0].state, runs[1].state) < TOLERANCE
    assert apart(runs[0].history, runs[1].history) < TOLERANCE
    which = number // 3 % 2
    resumes(task, runs[which], ENGINES[which], tmp_path, after=1 + number % 3)


def switched(*methods: Algorithm, kind: Kind) -> tuple[Ran, Ran, Task]:
    """A run of two rounds a method just before its last method begins, and at that moment."""
    task = task_of(methods, [2] * len(methods))
    until = replace(task, stages=task.stages[:-1])
    before, after = Ran(until, kind), Ran(until, kind)
    progress = Progress(after.server, stage=len(until.stages) - 1)
    progress = next_stage(task, after.engine, progress)
    assert progress.server.shared.keys() == methods[-1].shared(model_for(methods[-1], task.model))
    after.server, after.state = progress.server, everything(progress.server, after.engine)
    return before, after, task


def sharing() -> list[str]:
    """A method for every way to part a model into what is sent and what is kept."""
    ways: dict[object, str] = {}
    for name in METHOD_REGISTRY:
        algorithm = one_of_several(name)
        sent = algorithm.shared(model_for(algorithm, network("batch", of=algorithm)))
        ways.setdefault((sent, algorithm.heads), name)
    return list(ways.values())


def model_of(ran: Ran) -> dict[str, Tree]:
    """What is distributed at the end of a run."""
    return {"server": {"shared": ran.server.shared}}


@pytest.mark.parametrize(("first", "second"), list(product(sharing(), repeat=2)))
@each_engine
def test_every_leaf_goes_on_from_where_it_was(kind: Kind, first: str, second: str) -> None:
    """Sent before and after: from the distributed model. Kept before and after: from the client's own. Sent
    from now on: from the start that all clients had in common. Kept from now on: from the server's. Heads
    that come in: copies of the generic one."""
    before, after, task = switched(one_of_several(first), one_of_several(second), kind=kind)
    start = task.model.init(task.seed)[0]
    assert start.keys() == {**after.server.shared, **after.server.own}.keys()
    for k, v in after.server.shared.items():
        assert torch.equal(v, before.server.shared.get(k, start[k].to(v)))
    for client in range(len(task.federation.clients)):
        own = before.engine.personal(client, before.server.shared, before.server.buffers)[0]
        now = after.engine.personal(client, after.server.shared, after.server.buffers)[0]
        came = set(one_of_several(second).heads) - set(one_of_several(first).heads)
        generic = dict(zip(PERSONAL, task.model.classifier, strict=True))
        for k in after.server.own:
            if k in came:
                assert torch.equal(now[k], {**before.server.own, **before.server.shared}[generic[k]])
            else:
                assert torch.equal(now[k], own[k] if k in before.server.own else before.server.shared[k])


def test_there_are_four_ways_to_share_at_least() -> None:
    assert {"fedavg", "fedper", "lg-fedavg", "fedrod"} <= set(sharing())


@each_engine
def test_after_fedper_the_head_that_is_shared_again_is_the_one_all_clients_began_with(kind: Kind) -> None:
    before, after, task = switched(fedper(), fedavg(), kind=kind)
    start = task.model.init(task.seed)[0]
    for k in head(task.model):
        assert torch.equal(after.server.shared[k], start[k].double())
        for client in (0, 1, 3):
            own = before.engine.personal(client, before.server.shared, before.server.buffers)[0]
            assert not torch.equal(own[k], after.server.shared[k])
    assert not flatten(after.engine.save())


@each_engine
def test_after_fedavg_every_clients_head_begins_as_the_servers(kind: Kind) -> None:
    before, after, task = switched(fedavg(), fedper(), kind=kind)
    for k in head(task.model):
        assert not torch.equal(before.server.shared[k], task.model.init(task.seed)[0][k].double())
        for client in range(4):
            now = after.engine.personal(client, after.server.shared, after.server.buffers)[0]
            assert torch.equal(now[k], before.server.shared[k])


@each_engine
def test_a_client_keeps_its_head_from_fedper_to_fedrep_and_rests_with_it(kind: Kind) -> None:
    """Client 0 is asked in the first stage only, client 1 in both."""
    before, after, task = switched(fedper(), fedrep(), kind=kind)
    later = Ran(task, kind)
    for k in head(task.model):
        for client in ("0", "1", "3"):
            was = before.state["clients"][client]["local"][k]
            assert torch.equal(after.state["clients"][client]["local"][k], was)
        assert torch.equal(later.state["clients"]["0"]["local"][k], before.state["clients"]["0"]["local"][k])
        assert not torch.equal(
            later.state["clients"]["1"]["local"][k], before.state["clients"]["1"]["local"][k]
        )


def personal(state: Tree) -> dict[str, Tree]:
    """Every client's personal head."""
    rows = {client: row["local"] for client, row in state["clients"].items() if row["local"]}
    return {client: {k: own[k] for k in PERSONAL} for client, own in rows.items()}


@each_engine
def test_fedrod_takes_its_personal_heads_up_again_after_another_method(kind: Kind) -> None:
    """FedAvg in between asks clients 1, 2 and 3: 1 and 3 keep their heads, 2 begins with the generic one."""
    _, third, task = switched(fedrod(), fedavg(), fedrod(), kind=kind)
    first = Ran(replace(task, stages=task.stages[:1]), kind)
    was, now = personal(first.state), personal(third.state)
    start = task.model.init(task.seed)[0]
    assert set(was) == {"0", "1", "3"}
    for client, k in product(was, PERSONAL):
        assert not torch.equal(was[client][k], start[k].double())
        assert torch.equal(now[client][k], was[client][k])
    assert "2" not in now
    begun = third.engine.personal(2, third.server.shared, third.server.buffers)[0]
    for k, generic in zip(PERSONAL, task.model.classifier, strict=True):
        assert torch.equal(begun[k], third.server.shared[generic])


@each_engine
def test_a_head_that_another_stage_added_changes_nothing_of_a_method(kind: Kind) -> None:
    """Neither its clip nor its model: FedAvg before FedROD is FedAvg on the network without that head."""
    one, _, task = switched(fedavg(), fedrod(), kind=kind)
    assert task.model.extra == PERSONAL
    other = Ran(task_of([fedavg()], [2]), kind)
    assert distance(model_of(one), model_of(other)) == 0


@each_engine
def test_feddyn_without_h_goes_on_with_the_gradients_of_feddyn(kind: Kind) -> None:
    before, after, _ = switched(feddyn(), feddyn_no_h(), kind=kind)
    assert set(before.state["clients"]) == {"0", "1", "3"}
    kept = [{**model_of(ran), "u": ran.server.slots, "u_i": ran.state["clients"]} for ran in (before, after)]
    assert distance(kept[0], kept[1]) == 0
    assert all(v.any() for v in flatten(kept[1]["u"]).values())


@pytest.mark.parametrize(
    ("first", "second"), [(feddyn(), scaffold()), (scaffold(), fedpvr()), (fedpvr(), scaffold())]
)
@each_engine
def test_control_variates_begin_at_zero_unless_they_were_about_the_same_leaves(
    kind: Kind, first: Algorithm, second: Algorithm
) -> None:
    """Hence the first round is FedAvg's with equal weights."""
    _, after, _ = switched(first, second, kind=kind)
    assert set(after.server.slots) == {"control"}
    assert not any(v.any() for v in flatten(after.server.slots).values())
    assert not flatten(after.engine.save())
    one = Ran(task_of([first, second], [2, 1]), kind)
    plain = Ran(task_of([first, fedavg("uniform")], [2, 1]), kind)
    assert distance(model_of(one), model_of(plain)) == 0
    assert any(v.any() for v in flatten(one.state["clients"]).values())


@pytest.mark.parametrize("name", METHOD_REGISTRY)
def test_the_next_stage_begins_with_the_distributed_model_not_with_the_average(name: str) -> None:
    before, after, _ = switched(one_of_several(name), fedavg(), kind=ENGINES[0])
    for k, v in before.server.shared.items():
        assert torch.equal(after.server.shared[k], v)


@each_engine
def test_the_learning_rate_runs_on_across_a_switch(kind: Kind) -> None:
    """FedProx with μ = 0 is FedAvg: in the second stage's rounds too, with the rates of those rounds."""
    local = replace(LOCAL, optimizer=SGD(0.2, decay=0.5))
    split = Ran(task_of([fedavg(), fedprox(0.0)], [2, 2], local=local), kind)
    whole = Ran(task_of([fedavg()], [4], local=local), kind)
    steady = Ran(task_of([fedavg()], [4], local=replace(LOCAL, optimizer=SGD(0.2))), kind)
    assert distance(model_of(split), model_of(whole)) == 0
    assert distance(model_of(split), model_of(steady)) > 1e-3
