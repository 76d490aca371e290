"""Multiply-adds of a method, counted by PyTorch."""

from dataclasses import replace

from torch.utils.flop_counter import FlopCounterMode

from kedge.bench.rounds import rounds_of
from kedge.bench.workloads import Workload
from kedge.core.algorithm import Algorithm
from kedge.engines.sequential import Sequential


def multiply_adds(work: Workload, algorithm: Algorithm) -> int:
    """Multiply-adds of one client's round on the sequential engine.

    Matrix products and convolutions are counted. Elementwise operations (optimizer, clip, terms on the
    weights) are not.
    """
    task = replace(work, clients=1, per_round=1).method_task(algorithm, "cpu")
    round = rounds_of(task, Sequential(task.model, task.federation))
    with FlopCounterMode(display=False) as counter:
        round(0)
    return int(counter.get_total_flops()) // 2
