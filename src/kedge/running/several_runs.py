"""Train the runs of a command: runs that can share a pack in packs, every other run by itself."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext

import torch

from kedge.running.open_engine import cluster_of
from kedge.running.packs.grouping import groups
from kedge.running.packs.scheduler import PackScheduler
from kedge.running.requests import Controls, Outcome, RunRequest
from kedge.running.single_run import run_single


def run_all(
    requests: Sequence[RunRequest],
    limit: int = 0,
    shown: bool | None = None,
    say: Callable[[str], None] = lambda message: None,
    stop: Callable[[], bool] = lambda: False,
) -> Iterator[Outcome]:
    """Train all runs, in packs of at most `limit` runs (0: as many as fit), and yield outcomes as runs end.

    A run that fails does not end the others. When `stop` returns true, every run saves its state after the
    current round, and Interrupted is raised. `shown`: show progress bars (None: if standard error is a
    terminal). `say` receives messages for the user.
    """
    controls = Controls(shown, say, stop)
    on_cluster = [
        request.experiment.engine for request in requests if request.experiment.engine.name == "ray"
    ]
    with cluster_of(on_cluster[0]) if on_cluster else nullcontext():
        for group in groups(requests):
            if len(group) == 1:
                yield run_single(group[0], controls)
            else:
                yield from PackScheduler(group, limit, controls).outcomes()
            torch.cuda.empty_cache()  # the next group measures the free memory
