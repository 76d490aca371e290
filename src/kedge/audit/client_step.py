"""Take one kernel step of a client in the middle of a run, to read the gradient that the kernel used.

With a learning rate of 1, this gradient is the difference of the parameters before and after the step.
"""

from typing import Any, NamedTuple

import torch

from kedge.audit.problems import RAGGED, federation, perceptron
from kedge.audit.training import train_all_clients
from kedge.core.algorithm import Algorithm, LocalTraining
from kedge.core.client import Carry, Differentiate, gradient_by_transform, initial_carry, local_step
from kedge.core.model import Batch, Model
from kedge.core.optimizers import SGD
from kedge.core.server import broadcast
from kedge.core.tree import Leaves, Tree, add
from kedge.engines.leaves import trainable
from kedge.engines.sequential import Sequential

CLIENT = 3


class StepArguments(NamedTuple):
    """The arguments of the kernel for one step of a client."""

    model: Model
    w: Leaves
    state: Tree  # the client's memory by slot, after two rounds
    batch: Batch
    fixed: dict[str, Any]


def step_arguments(algorithm: Algorithm) -> StepArguments:
    """Train the small perceptron for two rounds, then move one client's parameters away from the anchor."""
    model, data = perceptron(algorithm), federation(RAGGED)
    engine = Sequential(model, data)
    server = train_all_clients(
        algorithm, LocalTraining(2, 5, SGD(0.3), clip=1.0), 2, data, model, engine
    ).server
    memory = engine.memories.of(CLIENT, server.shared, server.buffers)
    rows = torch.from_numpy(data.clients[CLIENT])
    x, y = data.prepare(data.pool.x[rows]), data.pool.y[rows]
    batch = Batch(x, y, torch.ones(len(y), dtype=x.dtype), torch.zeros(2, dtype=torch.int64))
    fixed = {
        "anchor": server.shared,
        "buffers": memory["buffers"],
        "broadcast": broadcast(algorithm, server),
        "facts": {k: v[CLIENT] for k, v in data.facts().items()},
        "lr": torch.ones((), dtype=x.dtype),
        "round": torch.tensor(2),
    }
    return StepArguments(
        model, add(memory["params"], random_leaves(memory["params"], 2)), memory["slots"], batch, fixed
    )


def leaves_of_first_units(model: Model, opened: int) -> tuple[str, ...]:
    """The leaves that train while the first `opened` units are open."""
    return trainable(model, [unit < opened for unit in range(len(model.units))])


def take_step(
    algorithm: Algorithm,
    at: StepArguments,
    leaves: tuple[str, ...],
    differentiate: Differentiate = gradient_by_transform,
) -> Carry:
    """Take one kernel step with a learning rate of 1."""
    local = LocalTraining(optimizer=SGD(1.0))
    carry = initial_carry(local, at.w, at.fixed["buffers"], at.state)
    return local_step(algorithm, at.model, local, leaves, carry, at.batch, at.fixed, differentiate)


def random_leaves(leaves: Leaves, seed: int) -> Leaves:
    """Random leaves with the shapes of `leaves`."""
    generator = torch.Generator().manual_seed(seed)
    return {k: torch.randn(v.shape, generator=generator, dtype=v.dtype) for k, v in leaves.items()}
