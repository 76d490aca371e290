"""Adam moves no frozen leaf."""

from dataclasses import replace

import torch
from tests.contract.problem import ALL_CLIENTS, federation, perceptron

from kedge.algorithms import feddyn
from kedge.audit.properties.frozen_units import open_second_unit
from kedge.audit.training import train_rounds
from kedge.core.algorithm import LocalTraining
from kedge.core.optimizers import Adam
from kedge.engines.sequential import Sequential
from kedge.engines.stack.stacked import Stacked


def test_adam_leaves_frozen_units_alone() -> None:
    model, data = perceptron(), federation()
    algorithm = replace(feddyn(0.1), schedule=open_second_unit)
    start = model.init(0)[0]
    for kind in (Sequential, Stacked):
        local = LocalTraining(2, 4, Adam(0.01, weight_decay=1e-2))
        shared = train_rounds(algorithm, local, kind(model, data), model, data, ALL_CLIENTS).shared
        moved = {k for k, v in shared.items() if not torch.equal(v, start[k].double())}
        assert moved == set(model.units[1])
