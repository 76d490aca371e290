"""Train runs in this process: runs that can share a pack in packs, every other run by itself."""

from collections.abc import Iterator, Sequence

import torch

from kedge.running.packs.grouping import groups
from kedge.running.packs.scheduler import PackScheduler
from kedge.running.requests import Controls, Outcome, RunRequest
from kedge.running.single_run import run_single


def train_here(requests: Sequence[RunRequest], limit: int, controls: Controls) -> Iterator[Outcome]:
    """Train runs, in packs of at most `limit` runs (0: as many as fit), and yield outcomes as runs end."""
    for group in groups(requests):
        if len(group) == 1:
            yield run_single(group[0], controls)
        else:
            yield from PackScheduler(group, limit, controls).outcomes()
        torch.cuda.empty_cache()  # the next group measures the free memory
