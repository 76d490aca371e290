"""A method as work: the task that is timed, and its multiply-adds as torch counts them."""

from dataclasses import replace

from torch.utils.flop_counter import FlopCounterMode

from kedge.bench.bench import rounds_of
from kedge.bench.workloads import Workload
from kedge.config.task import Task
from kedge.core.algorithm import Algorithm, Stage
from kedge.core.optimizers import SGD
from kedge.engines.sequential import Sequential
from kedge.nn.from_module import from_module, seeded


def multiply_adds(work: Workload, algorithm: Algorithm) -> int:
    """Of one client's round under the sequential engine, whose autograd goes back only as far as is needed.

    These are matrix products and convolutions; what is done element by element (optimizer, clip, terms on the
    weights) is not counted.
    """
    one = replace(work, clients=1, per_round=1)
    task = task_of(one, algorithm, "cpu")
    run = rounds_of(task, Sequential(task.model, task.federation))
    with FlopCounterMode(display=False) as counter:
        run(0)
    return int(counter.get_total_flops()) // 2


def task_of(work: Workload, algorithm: Algorithm, device: str) -> Task:
    """The workload with this method and its network; the steps are so short that no method ever diverges."""
    model = algorithm.adapt(from_module(seeded(lambda: algorithm.rebuild(work.module()), 0)))
    local = replace(work.local(), optimizer=SGD(1e-3, weight_decay=1e-3))
    return replace(work.task(device), model=model, stages=(Stage(algorithm, 1, local),))
