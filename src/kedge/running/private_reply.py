"""The reply of a private run: the engines' reply with a fixed denominator and noise."""

from kedge.config.task import Task
from kedge.core.server import Reply
from kedge.privacy.noise import Noise
from kedge.privacy.release import opened_leaves, release
from kedge.running.progress import Progress


def released_reply(task: Task, progress: Progress, reply: Reply, noise: Noise) -> Reply:
    """The part of a reply that a private run releases; `progress` is the progress before the round."""
    algorithm = task.stages[progress.stage].algorithm
    expected = task.participation.expected(len(task.federation.clients))
    opened = opened_leaves(algorithm, task.model, progress.round, progress.stage_round)
    return release(task.privacy, progress.server, reply, expected, opened, noise)
