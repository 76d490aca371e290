"""Stages: the state that a switch keeps, and the state that it resets."""

from dataclasses import replace

import pytest
import torch
from tests.contract.problem import federation, network, perceptron

from kedge.algorithms import fedavg, feddyn, scaffold
from kedge.audit.recorded_run import FixedCohorts
from kedge.config.task import Task
from kedge.core.algorithm import Algorithm, LocalTraining, Stage
from kedge.core.optimizers import SGD
from kedge.core.selections import body, head
from kedge.core.tree import flatten
from kedge.engines.sequential import Sequential
from kedge.engines.stack.stacked import Stacked
from kedge.running.runner import run

LOCAL = LocalTraining(2, 4, SGD(0.1, decay=0.7), clip=1.0)
each_engine = pytest.mark.parametrize("kind", [Sequential, Stacked])


@pytest.mark.parametrize("method", [feddyn(0.1), scaffold()], ids=lambda a: a.name)
@each_engine
def test_a_method_that_is_taken_up_again_begins_anew(
    method: Algorithm, kind: type[Sequential] | type[Stacked]
) -> None:
    """After a stage of FedAvg, FedDyn's u_i is w_i − θ of the last round, and the server's u is its mean.
    SCAFFOLD's c is 0 again, so that the new c is the mean of c_i."""
    model, data = perceptron(), federation()
    stages = [Stage(method, 2, LOCAL), Stage(fedavg(), 1, LOCAL), Stage(method, 1, LOCAL)]
    engine = kind(model, data)
    server = run(Task(stages, model, data), engine).server
    (slot,) = server.slots
    rows = [flatten(row["slots"][slot]) for row in engine.save().values()]
    assert len(rows) == len(data.clients)
    for k, v in flatten(server.slots[slot]).items():
        mean = torch.stack([row[k] for row in rows]).mean(0)
        torch.testing.assert_close(mean, v, rtol=1e-12, atol=1e-14)


@each_engine
def test_memories_of_a_method_that_is_left_are_dropped(kind: type[Sequential] | type[Stacked]) -> None:
    model, data = perceptron(), federation()
    engine = kind(model, data)
    run(Task([Stage(feddyn(0.1), 1, LOCAL), Stage(fedavg(), 1, LOCAL)], model, data), engine)
    assert not any(row["slots"] for row in engine.save().values())


@each_engine
def test_local_leaves_run_on_across_a_switch(kind: type[Sequential] | type[Stacked]) -> None:
    model, data = network("none"), federation()
    ended = []
    for stages in ([Stage(replace(fedavg(), shared=body), 3, LOCAL)],
                   [Stage(replace(fedavg(), shared=body), 1, LOCAL),
                    Stage(replace(fedavg(), shared=body, name="again"), 2, LOCAL)]):  # fmt: skip
        engine = kind(model, data)
        run(Task(stages, model, data), engine)
        ended.append(engine.save())
    for client, row in ended[0].items():
        assert set(row["local"]) == head(model)
        assert all(torch.equal(v, ended[1][client]["local"][k]) for k, v in row["local"].items())


def test_a_stage_may_end_early_on_its_own_history_and_leaves_its_rounds_to_the_next() -> None:
    model, data = perceptron(), federation()
    first = Stage(fedavg(), 4, LOCAL, until=lambda lines: len(lines) == 2)
    progress = run(Task([first, Stage(feddyn(0.1), 1, LOCAL)], model, data), Sequential(model, data))
    assert [line["method"] for line in progress.history] == ["fedavg", "fedavg", "feddyn", "feddyn", "feddyn"]
    assert [line["round"] for line in progress.history] == [1, 2, 3, 4, 5]


def test_a_stage_of_no_rounds_runs_only_if_the_one_before_ends_early() -> None:
    model, data = perceptron(), federation()
    for until, methods in (
        (None, ["fedavg"] * 3),
        (lambda lines: len(lines) == 2, ["fedavg"] * 2 + ["feddyn"]),
    ):
        stages = [Stage(fedavg(), 3, LOCAL, until), Stage(feddyn(0.1), 0, LOCAL)]
        progress = run(Task(stages, model, data), Sequential(model, data))
        assert [line["method"] for line in progress.history] == methods


@each_engine
def test_a_leaf_that_is_no_longer_shared_starts_from_the_servers(
    kind: type[Sequential] | type[Stacked],
) -> None:
    """FedAvg, then personal heads: a client that does not take part again has FedAvg's final head."""
    model, data = network("none"), federation()
    engine = kind(model, data)
    stages = [Stage(fedavg(), 2, LOCAL), Stage(replace(fedavg(), shared=body), 1, LOCAL)]
    before = run(Task(stages[:1], model, data), kind(model, data)).server
    given = FixedCohorts(cohorts=((0, 1, 2, 3), (0, 1, 2, 3), (1, 3)))
    after = run(Task(stages, model, data, given), engine).server
    for k in head(model):
        assert torch.equal(engine.personal(0, after.shared, after.buffers)[0][k], before.shared[k])
        assert not torch.equal(engine.personal(1, after.shared, after.buffers)[0][k], before.shared[k])
