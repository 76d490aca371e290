"""Leaves that are not shared stay with their client, round after round."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from tests.contract.problem import ALL_CLIENTS, federation, network

from kedge.algorithms import fedavg
from kedge.audit.training import train_rounds
from kedge.config.task import Task
from kedge.core.algorithm import LocalTraining, Stage
from kedge.core.optimizers import SGD
from kedge.core.selections import body, head
from kedge.engines.sequential import Sequential
from kedge.engines.stack.stacked import Stacked
from kedge.running.runner import run

LOCAL = LocalTraining(2, 4, SGD(0.1, weight_decay=1e-2), clip=1.0)
each_engine = pytest.mark.parametrize("kind", [Sequential, Stacked])


@each_engine
def test_every_client_keeps_its_own_head(kind: type[Sequential] | type[Stacked]) -> None:
    algorithm, model, data = replace(fedavg(), shared=body), network("none"), federation()
    engine = kind(model, data)
    server = train_rounds(algorithm, LOCAL, engine, model, data, ALL_CLIENTS)
    assert set(server.shared) == body(model)
    heads = [row["local"] for row in engine.save().values()]
    assert len(heads) == len(data.clients)
    assert all(set(own) == head(model) for own in heads)
    weight = model.units[-1][0]
    assert len({tuple(own[weight].flatten().tolist()) for own in heads}) == len(heads)


@each_engine
def test_a_head_rests_while_its_client_does(kind: type[Sequential] | type[Stacked]) -> None:
    algorithm, model, data = replace(fedavg(), shared=body), network("none"), federation()
    weight = model.units[-1][0]
    held = []
    for cohorts in ([[0, 1]], [[0, 1], [1, 2], [2, 3]]):
        engine = kind(model, data)
        train_rounds(algorithm, LOCAL, engine, model, data, cohorts)
        held.append({client: row["local"][weight] for client, row in engine.save().items()})
    assert set(held[0]) == {"0", "1"}
    assert torch.equal(held[0]["0"], held[1]["0"])
    assert not torch.equal(held[0]["1"], held[1]["1"])


def test_a_client_goes_on_from_its_own_head() -> None:
    """With a single client and a frozen body, a kept head and a shared head train the same."""
    model, data = network("none"), federation((9,))
    frozen_body = replace(
        fedavg(), shared=body, schedule=lambda clock, units: (False,) * (units - 1) + (True,)
    )
    shared_head = replace(frozen_body, shared=fedavg().shared)
    keeping, sharing = Sequential(model, data), Sequential(model, data)
    train_rounds(frozen_body, LOCAL, keeping, model, data, [[0]] * 3)
    server = train_rounds(shared_head, LOCAL, sharing, model, data, [[0]] * 3)
    for k in head(model):
        assert torch.allclose(keeping.save()["0"]["local"][k], server.shared[k], rtol=0, atol=1e-15)


@each_engine
def test_a_run_with_local_leaves_is_measured_and_written(
    kind: type[Sequential] | type[Stacked], tmp_path: Path
) -> None:
    model, data = network("batch"), federation()
    task = Task((Stage(replace(fedavg(), shared=body), 2, LOCAL),), model, data)
    progress = run(task, kind(model, data), tmp_path)
    assert set(progress.server.shared) == body(model)
    assert (tmp_path / "model.safetensors").exists()
