"""The reply of a private run: the engines' reply with a fixed denominator and the run's keyed noise."""

from kedge.config.task import Task
from kedge.core.server import Reply
from kedge.privacy.noise import keyed_noise
from kedge.privacy.release import opened_leaves, release
from kedge.running.progress import Progress


def released_reply(task: Task, progress: Progress, reply: Reply) -> Reply:
    """The part of a round's reply that a private run releases; the reply itself if the run is not private.

    `progress` is the progress before the round.
    """
    if not task.privacy.active:
        return reply
    algorithm = task.stages[progress.stage].algorithm
    expected = task.participation.expected(len(task.federation.clients))
    opened = opened_leaves(algorithm, task.model, progress.round, progress.stage_round)
    noise = keyed_noise(task.seed, progress.round)
    return release(task.privacy, progress.server, reply, expected, opened, noise)
