"""JointPlanner: prepares the rows of several runs as one stack, now or one round ahead."""

from collections.abc import Sequence
from typing import NamedTuple

from kedge.core.algorithm import Stage
from kedge.core.tree import Leaves
from kedge.data.batches import Plan
from kedge.engines.engine import Order
from kedge.engines.pack.joining import join_prepared, repeat_rows
from kedge.engines.stack.planner import key_of
from kedge.engines.stack.stack_start import Prepared, StackRows
from kedge.engines.stack.stacked import Stacked


class PendingRound(NamedTuple):
    """A run that waits for the reply to its assignment."""

    number: int  # of the run in its pack
    engine: Stacked
    order: Order
    clients: Sequence[int]


class JointRows(NamedTuple):
    """The prepared rows of several runs in one stack."""

    stages: list[Stage]  # of each run
    rows: list[StackRows]  # of each run; the orders have no tensors
    plans: list[Plan]  # of each run
    prepared: Prepared  # of the whole stack
    averages: Sequence[Leaves] = ()  # the shared leaves of each run's next order, if its server only averages
    anchor: Leaves | None = None  # `averages` as rows of the stack


class JointPlanner:
    """Prepares the rows of runs that train together; each run's own planner draws its batches."""

    def __init__(self, offsets: Sequence[int]) -> None:
        """`offsets` are the positions of each run's samples in the common pool."""
        self.offsets = offsets
        self.ahead: dict[tuple[int, ...], JointRows] = {}  # prepared ahead, by the numbers of the runs

    def take(self, waiting: Sequence[PendingRound], rows: list[StackRows]) -> JointRows:
        """The result of `prepare_ahead` if it is for these rows; else prepare them now."""
        ahead = self.ahead.pop(tuple(run.number for run in waiting), None)
        if ahead is not None:
            same_stages = all(
                stage is run.engine.stage for stage, run in zip(ahead.stages, waiting, strict=True)
            )
            if same_stages and list(map(key_of, ahead.rows)) == list(map(key_of, rows)):
                return ahead
        return self.prepare(waiting, rows)

    def prepare(self, waiting: Sequence[PendingRound], rows: list[StackRows]) -> JointRows:
        """Prepare the rows of these runs as one stack."""
        stages = [run.engine.stage for run in waiting]
        prepared = [
            run.engine.planner.prepare(stage, run.engine.model, run_rows)
            for run, stage, run_rows in zip(waiting, stages, rows, strict=True)
        ]
        counts = [len(run_rows.clients) for run_rows in rows]
        offsets = [self.offsets[run.number] for run in waiting]
        without_tensors = [run_rows.without_tensors() for run_rows in rows]
        plans = [run_prepared.plan for run_prepared in prepared]
        return JointRows(stages, without_tensors, plans, join_prepared(prepared, counts, offsets))

    def prepare_ahead(
        self, waiting: Sequence[PendingRound], rows: list[StackRows], averages: Sequence[Leaves]
    ) -> JointRows | None:
        """Prepare `rows` for the next round; None if `rows` is empty.

        If every run has one row, also stack `averages`: they are the shared leaves of the next order of every
        run whose server only averages.
        """
        numbers = tuple(run.number for run in waiting)
        self.ahead = {runs: joint for runs, joint in self.ahead.items() if not set(runs) & set(numbers)}
        if not rows:
            return None
        joint = self.prepare(waiting, rows)
        if all(len(run_rows.clients) == 1 for run_rows in rows):
            anchor = repeat_rows(averages, [1] * len(averages))
            joint = joint._replace(averages=averages, anchor=anchor)
        self.ahead[numbers] = joint
        return joint
