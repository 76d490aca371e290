"""JointPlanner: the rows of several runs as one stack, prepared now or one round ahead."""

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
    """A run that waits for a round."""

    number: int
    engine: Stacked
    order: Order
    clients: Sequence[int]


class JointRows(NamedTuple):
    """The rows of several runs in one stack, prepared, possibly one round ahead."""

    stages: list[Stage]  # of each run
    rows: list[StackRows]  # the order of each has its numbers, and no tensors
    plans: list[Plan]
    prepared: Prepared  # of the whole stack
    averages: Sequence[Leaves] = ()  # the shared leaves of each run's next order, if its server only averages
    anchor: Leaves | None = None  # `averages` as rows of the stack


class JointPlanner:
    """Prepares the rows of runs that train together; each run's own planner draws its batches."""

    def __init__(self, offsets: Sequence[int]) -> None:
        """`offsets` are the places of each run's samples in the common pool."""
        self.offsets = offsets
        self.ahead: dict[tuple[int, ...], JointRows] = {}  # by the numbers of runs

    def take(self, waiting: Sequence[PendingRound], rows: list[StackRows]) -> JointRows:
        """The prepared rows: those of `prepare_ahead` if they are the same rows, or prepared now."""
        ahead = self.ahead.pop(tuple(one.number for one in waiting), None)
        if ahead is not None:
            same_stages = all(
                stage is one.engine.stage for stage, one in zip(ahead.stages, waiting, strict=True)
            )
            if same_stages and list(map(key_of, ahead.rows)) == list(map(key_of, rows)):
                return ahead
        return self.prepare(waiting, rows)

    def prepare(self, waiting: Sequence[PendingRound], rows: list[StackRows]) -> JointRows:
        """Prepare the rows of these runs as one stack."""
        stages = [one.engine.stage for one in waiting]
        own = [
            one.engine.planner.prepare(stage, one.engine.model, some)
            for one, stage, some in zip(waiting, stages, rows, strict=True)
        ]
        counts, offsets = [len(some.clients) for some in rows], [self.offsets[one.number] for one in waiting]
        numbered = [some.without_tensors() for some in rows]
        return JointRows(stages, numbered, [one.plan for one in own], join_prepared(own, counts, offsets))

    def prepare_ahead(
        self, waiting: Sequence[PendingRound], rows: list[StackRows], averages: Sequence[Leaves]
    ) -> JointRows | None:
        """Prepare these rows of the next round, if `rows` is not empty.

        If every run has one row, also prepare the rows of its shared leaves: most servers only average.
        """
        numbers = tuple(one.number for one in waiting)
        self.ahead = {runs: one for runs, one in self.ahead.items() if not set(runs) & set(numbers)}
        if not rows:
            return None
        joint = self.prepare(waiting, rows)
        if all(len(own.clients) == 1 for own in rows):
            anchor = repeat_rows(averages, [1] * len(averages))
            joint = joint._replace(averages=averages, anchor=anchor)
        self.ahead[numbers] = joint
        return joint
