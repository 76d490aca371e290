"""Stages of different methods: every method as first and as second stage, and the state that passes on."""

from dataclasses import replace
from itertools import product
from pathlib import Path

import pytest
import torch
from tests.contract.composing import (
    ENGINES,
    LOCAL,
    FinishedRun,
    MakeEngine,
    assert_resumes,
    for_a_stage,
    history_difference,
    task_of,
)
from tests.contract.problem import TOLERANCE, distance, network
from tests.quick import cases, every

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
from kedge.audit.training import run_state
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


@pytest.mark.slow
@pytest.mark.parametrize(
    ("number", "first", "second"),
    [(number, *pair) for number, pair in enumerate(SWITCHES)],
    ids=[" -> ".join(pair) for pair in SWITCHES],
)
def test_every_method_is_a_first_and_a_second_stage_on_both_engines_and_resumes(
    number: int, first: str, second: str, tmp_path: Path
) -> None:
    """A method's pairs have consecutive numbers, so that they stop before, at and after the switch."""
    methods = [for_a_stage(first), for_a_stage(second)]
    task = task_of(methods, [2, 2], "shared" if number // 6 % 2 else "local")
    runs = [FinishedRun(task, kind) for kind in ENGINES]
    assert [line["method"] for line in runs[0].history] == [first, first, second, second]
    assert distance(runs[0].state, runs[1].state) < TOLERANCE
    assert history_difference(runs[0].history, runs[1].history) < TOLERANCE
    which = number // 3 % 2
    assert_resumes(task, runs[which], ENGINES[which], tmp_path, after=1 + number % 3)


def run_switch(*methods: Algorithm, kind: MakeEngine) -> tuple[FinishedRun, FinishedRun, Task]:
    """A run with two rounds of each method, before and after the switch to the last method."""
    task = task_of(methods, [2] * len(methods))
    until = replace(task, stages=task.stages[:-1])
    before, after = FinishedRun(until, kind), FinishedRun(until, kind)
    progress = Progress(after.server, stage=len(until.stages) - 1)
    progress = next_stage(task, after.engine, progress)
    assert progress.server.shared.keys() == methods[-1].shared(model_for(methods[-1], task.model))
    after.server, after.state = progress.server, run_state(progress.server, after.engine)
    return before, after, task


def methods_by_sharing() -> list[str]:
    """One method for each way to divide a model into shared and kept leaves."""
    ways: dict[object, str] = {}
    for name in METHOD_REGISTRY:
        algorithm = for_a_stage(name)
        sent = algorithm.shared(model_for(algorithm, network("batch", of=algorithm)))
        ways.setdefault((sent, algorithm.heads), name)
    return list(ways.values())


def final_model(ran: FinishedRun) -> dict[str, Tree]:
    """The distributed model at the end of a run, as a state for `distance`."""
    return {"server": {"shared": ran.server.shared}}


@pytest.mark.parametrize(("first", "second"), every(3, product(methods_by_sharing(), repeat=2)))
@each_engine
def test_every_leaf_goes_on_from_where_it_was(kind: MakeEngine, first: str, second: str) -> None:
    """The first value of a leaf in the second stage depends on how the stages share it.

    Shared in both: from the distributed model. Kept in both: from the client's memory. Shared only now: from
    the initial model. Kept only now: from the server's model. New heads: copies of the generic head.
    """
    before, after, task = run_switch(for_a_stage(first), for_a_stage(second), kind=kind)
    start = task.model.init(task.seed)[0]
    assert start.keys() == {**after.server.shared, **after.server.own}.keys()
    for k, v in after.server.shared.items():
        assert torch.equal(v, before.server.shared.get(k, start[k].to(v)))
    for client in range(len(task.federation.clients)):
        own = before.engine.personal(client, before.server.shared, before.server.buffers)[0]
        now = after.engine.personal(client, after.server.shared, after.server.buffers)[0]
        came = set(for_a_stage(second).heads) - set(for_a_stage(first).heads)
        generic = dict(zip(PERSONAL, task.model.classifier, strict=True))
        for k in after.server.own:
            if k in came:
                assert torch.equal(now[k], {**before.server.own, **before.server.shared}[generic[k]])
            else:
                assert torch.equal(now[k], own[k] if k in before.server.own else before.server.shared[k])


def test_there_are_four_ways_to_share_at_least() -> None:
    assert {"fedavg", "fedper", "lg-fedavg", "fedrod"} <= set(methods_by_sharing())


@each_engine
def test_after_fedper_the_head_that_is_shared_again_is_the_one_all_clients_began_with(
    kind: MakeEngine,
) -> None:
    before, after, task = run_switch(fedper(), fedavg(), kind=kind)
    start = task.model.init(task.seed)[0]
    for k in head(task.model):
        assert torch.equal(after.server.shared[k], start[k].double())
        for client in (0, 1, 3):
            own = before.engine.personal(client, before.server.shared, before.server.buffers)[0]
            assert not torch.equal(own[k], after.server.shared[k])
    assert not flatten(after.engine.save())


@each_engine
def test_after_fedavg_every_clients_head_begins_as_the_servers(kind: MakeEngine) -> None:
    before, after, task = run_switch(fedavg(), fedper(), kind=kind)
    for k in head(task.model):
        assert not torch.equal(before.server.shared[k], task.model.init(task.seed)[0][k].double())
        for client in range(4):
            now = after.engine.personal(client, after.server.shared, after.server.buffers)[0]
            assert torch.equal(now[k], before.server.shared[k])


@each_engine
def test_a_client_keeps_its_head_from_fedper_to_fedrep_and_rests_with_it(kind: MakeEngine) -> None:
    """Client 0 takes part in the first stage only, client 1 in both."""
    before, after, task = run_switch(fedper(), fedrep(), kind=kind)
    later = FinishedRun(task, kind)
    for k in head(task.model):
        for client in ("0", "1", "3"):
            was = before.state["clients"][client]["local"][k]
            assert torch.equal(after.state["clients"][client]["local"][k], was)
        assert torch.equal(later.state["clients"]["0"]["local"][k], before.state["clients"]["0"]["local"][k])
        assert not torch.equal(
            later.state["clients"]["1"]["local"][k], before.state["clients"]["1"]["local"][k]
        )


def personal_heads(state: Tree) -> dict[str, Tree]:
    """Every client's personal head."""
    rows = {client: row["local"] for client, row in state["clients"].items() if row["local"]}
    return {client: {k: own[k] for k in PERSONAL} for client, own in rows.items()}


@each_engine
def test_fedrod_takes_its_personal_heads_up_again_after_another_method(kind: MakeEngine) -> None:
    """Clients 1, 2 and 3 train FedAvg in between: 1 and 3 keep their heads, 2 gets the generic head."""
    _, third, task = run_switch(fedrod(), fedavg(), fedrod(), kind=kind)
    first = FinishedRun(replace(task, stages=task.stages[:1]), kind)
    was, now = personal_heads(first.state), personal_heads(third.state)
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
def test_a_head_that_another_stage_added_changes_nothing_of_a_method(kind: MakeEngine) -> None:
    """FedAvg before FedROD is FedAvg on the network without FedROD's head: same clip, same model."""
    one, _, task = run_switch(fedavg(), fedrod(), kind=kind)
    assert task.model.extra == PERSONAL
    other = FinishedRun(task_of([fedavg()], [2]), kind)
    assert distance(final_model(one), final_model(other)) == 0


@each_engine
def test_feddyn_without_h_goes_on_with_the_gradients_of_feddyn(kind: MakeEngine) -> None:
    before, after, _ = run_switch(feddyn(), feddyn_no_h(), kind=kind)
    assert set(before.state["clients"]) == {"0", "1", "3"}
    kept = [
        {**final_model(ran), "u": ran.server.slots, "u_i": ran.state["clients"]} for ran in (before, after)
    ]
    assert distance(kept[0], kept[1]) == 0
    assert all(v.any() for v in flatten(kept[1]["u"]).values())


@pytest.mark.parametrize(
    ("first", "second"), [(feddyn(), scaffold()), (scaffold(), fedpvr()), (fedpvr(), scaffold())]
)
@each_engine
def test_control_variates_begin_at_zero_unless_they_were_about_the_same_leaves(
    kind: MakeEngine, first: Algorithm, second: Algorithm
) -> None:
    """With control variates of zero, the first round is FedAvg with equal weights."""
    _, after, _ = run_switch(first, second, kind=kind)
    assert set(after.server.slots) == {"control"}
    assert not any(v.any() for v in flatten(after.server.slots).values())
    assert not flatten(after.engine.save())
    one = FinishedRun(task_of([first, second], [2, 1]), kind)
    plain = FinishedRun(task_of([first, fedavg("uniform")], [2, 1]), kind)
    assert distance(final_model(one), final_model(plain)) == 0
    assert any(v.any() for v in flatten(one.state["clients"]).values())


@pytest.mark.parametrize("name", cases(METHOD_REGISTRY))
def test_the_next_stage_begins_with_the_distributed_model_not_with_the_average(name: str) -> None:
    before, after, _ = run_switch(for_a_stage(name), fedavg(), kind=ENGINES[0])
    for k, v in before.server.shared.items():
        assert torch.equal(after.server.shared[k], v)


@each_engine
def test_the_learning_rate_runs_on_across_a_switch(kind: MakeEngine) -> None:
    """FedProx with μ = 0 is FedAvg, in the second stage with the learning rates of later rounds."""
    local = replace(LOCAL, optimizer=SGD(0.2, decay=0.5))
    split = FinishedRun(task_of([fedavg(), fedprox(0.0)], [2, 2], local=local), kind)
    whole = FinishedRun(task_of([fedavg()], [4], local=local), kind)
    steady = FinishedRun(task_of([fedavg()], [4], local=replace(LOCAL, optimizer=SGD(0.2))), kind)
    assert distance(final_model(split), final_model(whole)) == 0
    assert distance(final_model(split), final_model(steady)) > 1e-3
