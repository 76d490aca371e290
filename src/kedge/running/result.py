"""What a finished run hands back: its history, its models and what ran them."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from kedge.config.task import History, Task
from kedge.core.errors import RequestError
from kedge.core.tree import Leaves
from kedge.engines.engine import Engine
from kedge.measure.cells import Summary, cell_names, cell_summary
from kedge.running.progress import Progress
from kedge.running.recording.saving import last_algorithm, state_dict_of, whole


@dataclass(frozen=True, eq=False)
class Result:
    """A finished run.

    `model` and `personal` are state_dicts. Where a method changes the network (moon), they are the changed
    network's: they load into `method.rebuild(module)`, as in kedge.moon().rebuild(module). Heads that a
    method adds for each client (fedrod) stand in `personal` only.
    """

    name: str
    method: str  # of the last round
    seed: int
    history: History  # one dict a round
    model: dict[str, Tensor]  # the distributed model
    personal: dict[int, dict[str, Tensor]]  # client -> its own model, where clients keep something of it
    engine: dict[str, Any]  # what ran, and why
    folder: Path | None = None

    @property
    def accuracy(self) -> float:
        """The distributed model's last accuracy, on the common test set (else on local tests)."""
        return self._distributed().last

    @property
    def best(self) -> tuple[int, float]:
        """Round and value of the best accuracy."""
        found = self._distributed()
        return found.best_round, found.best

    def metric(self, name: str) -> Summary:
        """Any cell of the evaluation matrix: last, best, best_round, last_round.

        result.metric("personal.local.accuracy.tuned").last; `result.cells` lists the names.
        """
        return cell_summary(self.history, name)

    @property
    def cells(self) -> list[str]:
        """The names of the cells that were measured."""
        return cell_names(self.history)

    def _distributed(self) -> Summary:
        there = self.cells
        for metric in ("distributed.global.accuracy", "distributed.local.accuracy"):
            if metric in there:
                return self.metric(metric)
        raise RequestError(
            "the run has no test data: give a common test set or local tests to get an accuracy."
        )


def result_of(
    task: Task, engine: Engine, progress: Progress, name: str, chosen: dict[str, Any], folder: Path | None
) -> Result:
    """The result, with models as state_dicts on the CPU."""
    server, model, algorithm = progress.server, task.model, last_algorithm(task, progress)
    kept = any(k not in model.extra or k in algorithm.heads for k in server.own)

    def state_dict(params: Leaves, buffers: Leaves) -> dict[str, Tensor]:
        every = state_dict_of(model, params, buffers)
        return {k: v.detach().cpu().clone() for k, v in every.items()}

    clients = range(len(task.federation.clients)) if kept or model.statistics == "local" else ()
    return Result(
        name=name,
        method=algorithm.name,
        seed=task.seed,
        history=progress.history,
        model=state_dict(whole(model, server, server.shared), server.buffers),
        personal={c: state_dict(*engine.personal(c, server.shared, server.buffers)) for c in clients},
        engine=chosen,
        folder=folder,
    )
