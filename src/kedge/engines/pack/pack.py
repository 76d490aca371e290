"""Pack: several runs at once; clients of different runs are rows of one stack.

A run with one client a round does not fill a machine; several seeds, or cells of a sweep, do together. Each
run is a generator that yields an assignment per round. When all runs have yielded one, the rows of runs whose
steps are the same program (joint_programs.py) train side by side, each row with the weights, learning rate
and random numbers of its run. The result of a run depends on the other runs by rounding only: a product of
more rows may be summed in another order.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import accumulate
from typing import Any, NamedTuple

from kedge.core.algorithm import Algorithm
from kedge.core.client import Carry
from kedge.core.frozen import same_frozen
from kedge.core.model import Model
from kedge.core.server import Reply, upload_weights
from kedge.core.tree import Leaves, tree_foreach
from kedge.data.federation import Federation
from kedge.engines.engine import Assignment, Order, Rounds, T, resume_run
from kedge.engines.out_of_memory import ran_out_of_memory
from kedge.engines.pack.joining import join_starts, membership, merge_pools, totals_of_run
from kedge.engines.pack.joint_planner import JointPlanner, JointRows, PendingRound
from kedge.engines.pack.joint_programs import JointPrograms, own_end, own_totals, with_slots
from kedge.engines.pack.rows import RowCounts
from kedge.engines.stack.programs import StackEnd
from kedge.engines.stack.stack_start import StackRows, StackStart, first_carry
from kedge.engines.stack.stacked import Stacked, next_order
from kedge.engines.sums import Totals, Uploads, read_back, sum_uploads, weighted_means
from kedge.torch_private import foreach_add

Build = Callable[[Model, Federation], Stacked]
# Runs with equal keys can train in one stack: the number of their program, and their entry in `Pack.frozen`.
StackKey = tuple[int, int]


class JointEnd(NamedTuple):
    """The results of a round of several runs."""

    algorithm: Algorithm  # of the stack: the corrections of all runs
    carry: Carry
    anchor: Leaves
    end: StackEnd
    uploads: Uploads
    totals: list[Totals]  # weighted sums of each run
    means: list[dict[str, Any]]  # weighted means of each run
    averages: list[Leaves]  # the shared leaves plus the mean delta
    trained: list[frozenset[str]]  # the leaves that train in some step


class Pack:
    """Trains several runs at once, as rows of common stacks."""

    def __init__(self, engines: Sequence[Stacked], build: Build, most: int = 0) -> None:
        """`engines` has the engine of each run, for its memories and for rounds that it trains alone.

        `build` creates a common engine. No stack has more than `most` rows (0: as many as fit into memory).
        """
        self.engines = engines
        pools, self.offsets = merge_pools([engine.federation.pool for engine in engines])
        self.federation = replace(engines[0].federation, pool=pools)  # with the samples of all runs
        self.build = build
        # For each run, the first run with the same frozen parameters; all rows of a stack share them.
        self.frozen = [
            next(n for n, other in enumerate(engines) if same_frozen(other.network, engine.network))
            for engine in engines
        ]
        self.stacks: list[tuple[StackKey, int, Stacked]] = []  # key, samples of a batch, engine
        self.programs = JointPrograms()
        self.rows = RowCounts([engine.planner.participants for engine in engines], most)
        self.planner = JointPlanner(self.offsets)
        self.last_plans: Any = None  # of the previous round, freed while the device trains

    def train_runs(self, runs: Sequence[Rounds[T]], ended: Callable[[int, T | BaseException], None]) -> None:
        """Train all runs to their ends; `ended` is called with the number and the result or error of each."""
        replies: dict[int, Reply | BaseException | None] = dict.fromkeys(range(len(runs)))
        while replies:
            assignments = {}
            for number, reply in replies.items():
                try:
                    assignments[number] = resume_run(runs[number], reply)
                    continue
                except StopIteration as end:
                    ended(number, end.value)
                except BaseException as error:
                    ended(number, error)
                self.engines[number].forget()  # frees its memory for the others
            replies = {**self.replies(assignments)}

    def replies(self, assignments: Mapping[int, Assignment]) -> dict[int, Reply | BaseException]:
        """The replies to the assignments, by run; an error is the reply to all runs that train together."""
        waiting = [
            PendingRound(number, self.engines[number], *assignment)
            for number, assignment in assignments.items()
        ]
        keys = [self.stack_key(run) for run in waiting]
        replies: dict[int, Reply | BaseException] = {}
        for key in dict.fromkeys(keys):
            group = [run for run, run_key in zip(waiting, keys, strict=True) if run_key == key]
            try:
                trained = self.train(group)
                replies |= {run.number: reply for run, reply in zip(group, trained, strict=True)}
            except Exception as error:
                replies |= {run.number: error for run in group}
        return {number: replies[number] for number in assignments}

    def train(self, waiting: Sequence[PendingRound], is_part: bool = False) -> list[Reply]:
        """Train a round of runs with equal keys, in two parts if they have too many rows.

        `is_part`: the runs are a part, and train in the common stack even if there is only one run.
        """
        rows = sum(len(run.clients) for run in waiting)
        key, numbers = self.stack_key(waiting[0]), [run.number for run in waiting]
        if len(waiting) > 1 and rows > self.rows.limit(key, numbers):
            middle = len(waiting) // 2
            return [*self.train(waiting[:middle], True), *self.train(waiting[middle:], True)]
        # A single run trains in its own stack, if memory has room for that besides the common stack.
        alone = len(waiting) == 1 and not is_part
        if not alone or (self.rows.limited and rows <= self.rows.most):
            try:
                return self.train_side_by_side(waiting)
            except Exception as error:
                if not ran_out_of_memory(error):
                    raise
            self.rows.halve(rows)
            for *_, stack in self.stacks:
                stack.forget()
            self.stacks.clear()
        if len(waiting) > 1:
            return self.train(waiting)
        _, engine, order, clients = waiting[0]
        return [engine.train(order, clients).reply()]

    def train_side_by_side(self, waiting: Sequence[PendingRound]) -> list[Reply]:
        """Train a round of these runs in one stack."""
        width = max(run.engine.width for run in waiting)
        stack = self.stack(waiting[0], width)
        rows = self.lay_out(waiting, [run.order for run in waiting], [run.clients for run in waiting], width)
        joint = self.planner.take(waiting, rows)
        start = self.start(waiting, joint, stack.stage.algorithm)
        event = stack.overlap.record_event()
        carry = stack.run_steps(start)
        firsts = [0, *accumulate(len(run_rows.clients) for run_rows in rows)]  # first row of each run
        ends = tuple(first + run_rows.real for first, run_rows in zip(firsts, rows, strict=False))
        real_rows = membership(tuple(firsts[:-1]), ends, firsts[-1], start.prepared.lr.device)
        end = stack.end(start, carry, real_rows)
        totals, means, averages = totals_means_averages(waiting, end)
        trained = [run.engine.trained_leaves(plan) for run, plan in zip(waiting, joint.plans, strict=True)]
        self.last_plans = joint.plans, start.plan
        # The host waits for the device in `read_back`, and does all work that it can before.
        following = self.draw_ahead(waiting, width)
        for run in waiting:
            run.engine.overlap.report_busy(event)
        joint_ahead = self.planner.prepare_ahead(waiting, following, averages)
        if joint_ahead:
            stack.backend.pin_plan(joint_ahead.prepared.plan)
        flags, losses = read_back(end.uploads, end.admitted)
        uploads = Uploads(end.uploads, start.prepared.facts, end.admitted, flags, losses)
        joint_end = JointEnd(
            stack.stage.algorithm, carry, start.anchor, end, uploads, totals, means, averages, trained
        )
        return [
            self.reply(run, position, firsts[position], joint_end) for position, run in enumerate(waiting)
        ]

    def reply(self, run: PendingRound, position: int, first: int, ended: JointEnd) -> Reply:
        """Store the memories of a run's clients, and return the run's reply.

        The run is at `position` among the runs of the stack, and its rows start at `first`.
        """
        engine, clients, algorithm = run.engine, run.clients, run.engine.stage.algorithm
        finite = all(ended.uploads.flags)  # one row that is not finite makes the sums of all runs NaN
        slots, uploads = ended.end.slots, ended.uploads
        if not finite and algorithm != ended.algorithm:
            slots, uploads = own_end(algorithm, ended.carry, ended.anchor, ended.end, ended.uploads.facts)
        trained, totals = ended.trained[position], ended.totals[position] if finite else None
        sums = sum_uploads(uploads, first, clients, upload_weights(algorithm), trained, totals)
        for memory in engine.changed_memories(clients, first, ended.carry, slots, uploads.flags):
            engine.memories.keep(*memory)
        return sums.reply(ended.means[position], ended.averages[position]) if finite else sums.reply()

    def lay_out(
        self,
        waiting: Sequence[PendingRound],
        orders: Sequence[Order],
        clients: Sequence[Sequence[int]],
        width: int,
    ) -> list[StackRows]:
        """The rows of each run; the first run's rows are padded, so that few numbers of rows occur."""
        rows = [
            StackRows(order, of_run, len(of_run), width)
            for order, of_run in zip(orders, clients, strict=True)
        ]
        if waiting[0].engine.backend.pads_rows:
            count, numbers = sum(map(len, clients)), [run.number for run in waiting]
            padding = self.rows.padded(self.stack_key(waiting[0]), numbers, count) - count
            rows[0] = rows[0]._replace(clients=[*clients[0], *[clients[0][0]] * padding])
        return rows

    def start(self, waiting: Sequence[PendingRound], joint: JointRows, algorithm: Algorithm) -> StackStart:
        """All rows before their first step, with memories for every correction of `algorithm`."""
        orders = [run.order for run in waiting]
        rows = [run_rows._replace(order=order) for run_rows, order in zip(joint.rows, orders, strict=True)]
        carries = [
            with_slots(carry_without_shared(run, run_rows), algorithm)
            for run, run_rows in zip(waiting, rows, strict=True)
        ]
        members = [
            [run.engine.federation.clients[c] for c in run_rows.clients]
            for run, run_rows in zip(waiting, rows, strict=True)
        ]
        complete_orders = [
            order._replace(broadcast={c.name: order.broadcast.get(c.name, {}) for c in algorithm.corrections})
            for order in orders
        ]
        only_averaged = all(
            order.shared is average for order, average in zip(orders, joint.averages, strict=False)
        )
        offsets = [self.offsets[run.number] for run in waiting]
        anchor = joint.anchor if only_averaged else None
        return join_starts(complete_orders, carries, members, offsets, joint.prepared, anchor)

    def draw_ahead(self, waiting: Sequence[PendingRound], width: int) -> list[StackRows]:
        """Start to draw the batches of the next round, and return its rows.

        Empty if the next clients of some run are not known.
        """
        orders = [next_order(run.order) for run in waiting]
        clients = [
            list(run.engine.planner.participants(order.round))
            for run, order in zip(waiting, orders, strict=True)
        ]
        if not all(clients):
            return []
        rows = self.lay_out(waiting, orders, clients, width)
        for run, run_rows in zip(waiting, rows, strict=True):
            run.engine.planner.draw_ahead(run.engine.stage, run.engine.model, run_rows)
        return rows

    def stack_key(self, run: PendingRound) -> StackKey:
        """The key of a run's stack: runs with equal keys can train in one stack."""
        return self.programs.number(run.engine.stage), self.frozen[run.number]

    def stack(self, run: PendingRound, width: int) -> Stacked:
        """The common stack for runs with the key of `run`, whose batches have `width` samples."""
        key, engine = self.stack_key(run), run.engine
        joint_stage = self.programs.stage(key[0], engine.stage)
        for other_key, other_width, stack in self.stacks:
            if (other_key, other_width) == (key, width) and stack.stage.algorithm == joint_stage.algorithm:
                return stack
        stack = self.build(engine.network, self.federation)
        stack.begin(joint_stage, {**engine.memories.local}, frozenset())
        most = 3 + len(set(self.frozen)) - 1
        # Only the newest stacks are kept: a run does not return to an earlier stage.
        self.stacks = [*self.stacks[-most:], (key, width, stack)]
        return stack


def carry_without_shared(run: PendingRound, rows: StackRows) -> Carry:
    """The first carry of a run's rows, without the shared leaves."""
    engine = run.engine
    return first_carry(engine.stage, engine.memories, rows.order, rows.clients, False, with_shared=False)


def totals_means_averages(
    waiting: Sequence[PendingRound], end: StackEnd
) -> tuple[list[Totals], list[dict[str, Any]], list[Leaves]]:
    """Weighted sums, weighted means, and shared leaves plus mean delta, of each run."""
    methods = [run.engine.stage.algorithm for run in waiting]
    totals = [own_totals(totals_of_run(end.totals, n), method) for n, method in enumerate(methods)]
    means = [weighted_means(of_run) for of_run in totals]
    averages = [
        tree_foreach(foreach_add, run.order.shared, mean[""]["delta"])
        for run, mean in zip(waiting, means, strict=True)
    ]
    return totals, means, averages
