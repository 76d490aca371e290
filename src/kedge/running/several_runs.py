"""Train the runs of a command: in this process, in packs if they can share one, or as tasks of a cluster."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext

from kedge.running.one_process import train_here
from kedge.running.open_engine import RAY, cluster_of
from kedge.running.requests import Controls, Outcome, RunRequest
from kedge.running.tasks.spread import SpreadRuns


def run_all(
    requests: Sequence[RunRequest],
    limit: int = 0,
    shown: bool | None = None,
    say: Callable[[str], None] = lambda message: None,
    stop: Callable[[], bool] = lambda: False,
    spread: bool = False,
) -> Iterator[Outcome]:
    """Train all runs, in packs of at most `limit` runs (0: as many as fit), and yield outcomes as runs end.

    A run that fails does not end the others. When `stop` returns true, every run saves its state after the
    current round, and Interrupted is raised. `shown`: show progress bars (None: if standard error is a
    terminal). `say` receives messages for the user. `spread`: runs of the engine "ray" train as tasks of the
    cluster, each on one worker; else the clients of their rounds are spread.
    """
    controls = Controls(shown, say, stop)
    tasks: list[RunRequest] = []
    others: list[RunRequest] = []
    for request in requests:
        (tasks if spread and trains_as_task(request) else others).append(request)
    on_cluster = [request.experiment.engine for request in requests if request.experiment.engine.name == RAY]
    with cluster_of(on_cluster[0]) if on_cluster else nullcontext() as cluster:
        yield from train_here(others, limit, controls)
        if tasks and cluster:
            yield from SpreadRuns(cluster, tasks, limit, controls).outcomes()


def trains_as_task(request: RunRequest) -> bool:
    """Whether a run may train as a task; a resumed run whose clients were spread continues in that way."""
    recorded = request.engine_settings
    return request.experiment.engine.name == RAY and not (recorded and recorded["name"] == RAY)
