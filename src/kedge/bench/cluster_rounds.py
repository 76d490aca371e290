"""Rounds on the workers of a Ray cluster on this machine: one worker for each GPU, or for each CPU core."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

from kedge.bench.rounds import Round, rounds_of
from kedge.config.experiment import EngineChoice
from kedge.config.task import Task
from kedge.nn.precision import Precision, in_precision
from kedge.running.open_engine import choose_settings, cluster_of, open_engine


@contextmanager
def cluster_rounds(task: Task, precision: Precision, rounds: int) -> Iterator[Round]:
    """Rounds on a cluster that is started here; its workers choose an engine for a run of `rounds` rounds."""
    stages = tuple(replace(stage, rounds=rounds) for stage in task.stages)
    model = in_precision(task.model, precision)
    task = replace(task, stages=stages, model=model, precision=precision)
    wanted = EngineChoice("ray", device=task.federation.pool.x.device.type, precision=precision)  # type: ignore[arg-type]
    with cluster_of(wanted):
        settings = choose_settings(task, wanted, lambda message: None)
        with open_engine(task, settings, lambda message: None) as engine:
            yield rounds_of(task, engine)
