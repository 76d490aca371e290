"""Result: the history, the models and the engine settings of a finished run."""

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
from kedge.running.recording.final_models import complete_leaves, last_algorithm, state_dict_of


@dataclass(frozen=True, eq=False)
class Result:
    """A finished run.

    `model` and `personal` contain state_dicts. If the method changes the network (moon), they are for the
    changed network: load them into `method.rebuild(module)`, as in kedge.moon().rebuild(module). Heads that a
    method adds for each client (fedrod) are in `personal` only.
    """

    name: str
    method: str  # of the last round
    seed: int
    history: History  # one dict per round
    model: dict[str, Tensor]  # the distributed model
    personal: dict[int, dict[str, Tensor]]  # client -> its own model, if clients keep leaves or statistics
    engine: dict[str, Any]  # the engine's settings, and the reason for the choice
    folder: Path | None = None

    @property
    def accuracy(self) -> float:
        """Last accuracy of the distributed model, on the common test set, or else on the local tests."""
        return self._distributed().last

    @property
    def best(self) -> tuple[int, float]:
        """Round and value of the best accuracy."""
        summary = self._distributed()
        return summary.best_round, summary.best

    def metric(self, name: str) -> Summary:
        """A cell of the evaluation matrix: its last and best value and their rounds.

        result.metric("personal.local.accuracy.tuned").last is a number; `result.cells` lists the names.
        """
        return cell_summary(self.history, name)

    @property
    def cells(self) -> list[str]:
        """Names of the measured cells."""
        return cell_names(self.history)

    def _distributed(self) -> Summary:
        measured = self.cells
        for metric in ("distributed.global.accuracy", "distributed.local.accuracy"):
            if metric in measured:
                return self.metric(metric)
        raise RequestError(
            "the run has no test data: give a common test set or local tests to get an accuracy."
        )


def result_of(
    task: Task,
    engine: Engine,
    progress: Progress,
    name: str,
    engine_settings: dict[str, Any],
    folder: Path | None,
) -> Result:
    """The result of a finished run, with models on the CPU."""
    server, model, algorithm = progress.server, task.model, last_algorithm(task, progress)
    clients_keep_leaves = any(k not in model.extra or k in algorithm.heads for k in server.own)

    def state_dict(params: Leaves, buffers: Leaves) -> dict[str, Tensor]:
        return {k: v.detach().cpu().clone() for k, v in state_dict_of(model, params, buffers).items()}

    personal = clients_keep_leaves or model.statistics == "local"
    clients = range(len(task.federation.clients)) if personal else ()
    return Result(
        name=name,
        method=algorithm.name,
        seed=task.seed,
        history=progress.history,
        model=state_dict(complete_leaves(model, server, server.shared), server.buffers),
        personal={c: state_dict(*engine.personal(c, server.shared, server.buffers)) for c in clients},
        engine=engine_settings,
        folder=folder,
    )
