"""A small federation with local tests, and its models trained and tested in plain PyTorch, without kedge."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from kedge.audit.recorded_run import FixedCohorts
from kedge.config.task import Task
from kedge.core.algorithm import Algorithm, LocalTraining, Stage
from kedge.core.correction import Correction, End
from kedge.core.optimizers import SGD
from kedge.core.tree import Leaves, Tree, zeros
from kedge.data.datasets import synthetic
from kedge.data.federation import Federation
from kedge.engines.sequential import Sequential
from kedge.engines.stack.stacked import Stacked
from kedge.nn.from_module import from_module, seeded

Kind = type[Sequential] | type[Stacked]
ENGINES: tuple[Kind, ...] = (Sequential, Stacked)
CLASSES, INPUTS = 3, 6
SIZES = (5, 9, 3, 7, 4)  # training samples of each client
TESTS = (6, 2, 0, 9, 4)  # client 2 has no test of its own
COHORTS = ((0, 1), (1, 3), (0, 2, 3), (1, 2))  # client 4 never takes part
LOCAL = LocalTraining(2, 50, SGD(0.3, momentum=0.5, weight_decay=0.01, decay=0.8), clip=1.0)  # full batches
NO_MOMENTUM = LocalTraining(2, 50, SGD(0.3, weight_decay=0.01, decay=0.8), clip=1.0)
HEAD = ("4.weight", "4.bias")


def federation() -> Federation:
    """Gaussian classes; float64."""
    source = synthetic((sum(SIZES) + sum(TESTS)) * 5 // 4 + 5, CLASSES, INPUTS, noise=1.5)
    cuts = np.split(np.arange(sum(SIZES) + sum(TESTS)), np.cumsum([*SIZES, *TESTS]))
    count = len(SIZES)
    data = Federation(source.train, tuple(cuts[:count]), tuple(cuts[count : 2 * count]), source.test, CLASSES)
    return data.to("cpu", torch.float64)


def network() -> nn.Sequential:
    """Three linear layers: three units."""
    return nn.Sequential(nn.Linear(INPUTS, 5), nn.Tanh(), nn.Linear(5, 4), nn.Tanh(), nn.Linear(4, CLASSES))


def task_of(*stages: tuple[Algorithm, int], local: LocalTraining = LOCAL, **settings: Any) -> Task:
    """A task whose participants are listed."""
    data = federation()
    model = from_module(seeded(lambda: stages[0][0].rebuild(network()), 0))
    for adapt in dict.fromkeys(algorithm.adapt for algorithm, _ in stages):
        model = adapt(model)
    every = [Stage(algorithm, rounds, local) for algorithm, rounds in stages]
    return Task(every, model, data, FixedCohorts(cohorts=COHORTS), **settings)


def start(task: Task) -> Leaves:
    """The initial model."""
    return {k: v.double() for k, v in task.model.init(task.seed)[0].items()}


@dataclass(frozen=True)
class Witness(Correction):
    """Every client stores its model at the end of its last round, and uploads nothing more."""

    name = "witness"

    def init_client(self, shared: Leaves) -> Tree:
        return {"last": zeros(shared)}

    def finish(self, end: End) -> tuple[Tree, Tree]:
        return {"last": end.params}, {}


def also(algorithm: Algorithm, *corrections: Correction) -> Algorithm:
    """The method with these corrections after its own."""
    return replace(algorithm, corrections=(*algorithm.corrections, *corrections))


def last_models(engine: Sequential | Stacked, task: Task) -> list[Leaves]:
    """Each client's last model, stored by the witness; the initial model if a client never took part."""
    saved = engine.save()
    asked = {str(c) for cohort in COHORTS[: task.rounds] for c in cohort}
    first = start(task)
    return [
        saved[str(c)]["slots"]["witness"]["last"] if str(c) in asked else first for c in range(len(SIZES))
    ]


def mean(models: Sequence[Leaves]) -> Leaves:
    """The plain mean."""
    return {k: torch.stack([model[k] for model in models]).mean(0) for k in models[0]}


def module_of(leaves: Leaves) -> nn.Sequential:
    """The network with these weights."""
    module = network().double()
    module.load_state_dict({k: leaves[k] for k in module.state_dict()})
    return module


Answer = Callable[[Tensor], Tensor]  # inputs -> logits


def tested(answer: Answer, x: Tensor, y: Tensor) -> tuple[float, float]:
    """Accuracy and loss."""
    with torch.no_grad():
        logits = answer(x.double())
    return float((logits.argmax(1) == y).double().mean()), float(F.cross_entropy(logits, y))


def on_common(answer: Answer, task: Task) -> tuple[float, float]:
    """On the common test set."""
    test = task.federation.test
    assert test is not None
    return tested(answer, test.x, test.y)


def on_own(answers: Sequence[Answer], task: Task, clients: Iterable[int] = range(len(SIZES))) -> list[float]:
    """Accuracy and loss over all samples of these clients' tests, each client with its own logits."""
    data = task.federation
    totals = torch.zeros(2, dtype=torch.float64)
    count = 0
    for c in clients:
        own = torch.from_numpy(data.local_tests[c])
        if len(own):
            found = tested(answers[c], data.pool.x[own], data.pool.y[own])
            totals += len(own) * torch.tensor(found, dtype=torch.float64)
            count += len(own)
    return [float(v) / count for v in totals]


def trained(
    leaves: Leaves,
    task: Task,
    client: int,
    moving: Iterable[str],
    epochs: int,
    round: int,
    local: LocalTraining = LOCAL,
) -> Leaves:
    """Full-batch torch.optim.SGD of some leaves on a client's data, at the learning rate of a round."""
    module = module_of(leaves)
    optimizer = local.optimizer
    assert isinstance(optimizer, SGD)
    wanted = [p.requires_grad_(k in set(moving)) for k, p in module.named_parameters()]
    active = [p for p in wanted if p.requires_grad]
    step = torch.optim.SGD(
        active, optimizer.lr * optimizer.decay**round, optimizer.momentum, weight_decay=optimizer.weight_decay
    )
    own = torch.from_numpy(task.federation.clients[client])
    x, y = task.federation.pool.x[own].double(), task.federation.pool.y[own]
    for _ in range(epochs):
        step.zero_grad()
        loss = F.cross_entropy(module(x), y)
        loss.backward()  # type: ignore[no-untyped-call]  # torch has no types for it
        if local.clip is not None:
            norm = torch.stack([p.grad.square().sum() for p in active if p.grad is not None]).sum().sqrt()
            for p in active:
                assert p.grad is not None
                p.grad *= min(1.0, local.clip / float(norm))
        step.step()
    return {k: v.detach().clone() for k, v in module.state_dict().items()}
