"""The final models of a run as files, and any model as a state_dict."""

from pathlib import Path

import safetensors.torch

from kedge.config.task import Task
from kedge.core.algorithm import Algorithm
from kedge.core.model import Model
from kedge.core.server import Server
from kedge.core.tree import Leaves
from kedge.running.folders import checkpoint
from kedge.running.folders.folder import write
from kedge.running.progress import Progress


def write_models(folder: Path, task: Task, progress: Progress) -> None:
    """Write the final distributed model, and the views beside it."""
    server = progress.server
    models = {"model": server.shared, "average": server.average}
    for c in last_algorithm(task, progress).corrections:
        models |= c.views(server.shared, server.slots[c.name])
    for name, leaves in models.items():
        state_dict = state_dict_of(task.model, complete_leaves(task.model, server, leaves), server.buffers)
        write(folder / f"{name}.safetensors", safetensors.torch.save(checkpoint.cpu_copies(state_dict)))


def last_algorithm(task: Task, progress: Progress) -> Algorithm:
    """The method of the last round; later stages may never have started."""
    return task.stages[min(progress.stage, len(task.stages) - 1)].algorithm


def complete_leaves(model: Model, server: Server, leaves: Leaves) -> Leaves:
    """All leaves of a model with the shared leaves `leaves`, without heads that a method adds per client.

    Leaves that are not shared have their initial values.
    """
    all_leaves = {**server.own, **leaves}
    names = [k for unit in model.units for k in unit]
    return {k: all_leaves[k] for k in [*names, *(k for k in leaves if k in model.extra)]}


def state_dict_of(model: Model, params: Leaves, buffers: Leaves) -> Leaves:
    """The complete state_dict of a model, including frozen parameters and integer buffers.

    It has the parameters first, in the network's order, and a tied tensor under each of its names.
    """
    tensors = {**params, **buffers, **dict(model.constants)}
    tensors |= {name: tensors[first_name] for name, first_name in model.tied if first_name in tensors}
    parameters = [k for k in (*model.parameters, *params) if k in tensors]
    return {k: tensors[k] for k in dict.fromkeys([*parameters, *tensors])}
