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
from kedge.engines.pack.joining import (
    join_starts,
    membership,
    merged,
    of_run,
)
from kedge.engines.pack.joint_planner import JointPlanner, JointRows, PendingRound
from kedge.engines.pack.joint_programs import JointPrograms, own_end, own_totals, with_slots
from kedge.engines.pack.rows import RowCounts
from kedge.engines.stack.programs import StackEnd
from kedge.engines.stack.stack_start import StackRows, StackStart
from kedge.engines.stack.stacked import Stacked, next_order
from kedge.engines.sums import Totals, Uploads, read_back, sum_uploads, weighted_means
from kedge.torch_private import foreach_add

Build = Callable[[Model, Federation], Stacked]
# Rows of the same kind train side by side: the number of their program, and the run's entry in `Pack.frozen`.
Kind = tuple[int, int]


class JointEnd(NamedTuple):
    """The end of a round of several runs."""

    algorithm: Algorithm  # of the stack: the corrections of all runs
    carry: Carry
    anchor: Leaves
    end: StackEnd
    uploads: Uploads
    totals: list[Totals]  # of each run
    means: list[dict[str, Any]]
    averages: list[Leaves]  # the shared leaves plus the mean delta
    trained: list[frozenset[str]]  # the leaves that train in some step


class Pack:
    """The common stack of several runs."""

    def __init__(self, engines: Sequence[Stacked], build: Build, most: int = 0) -> None:
        """`engines` are the runs' own, for rounds that a run trains alone; `build` makes a common one.

        No stack has more than `most` rows (0: as many as fit into memory).
        """
        self.engines = engines
        pools, self.offsets = merged([engine.federation.pool for engine in engines])
        self.whole = replace(engines[0].federation, pool=pools)
        self.build = build
        # For each run, the first run with the same frozen parameters; all rows of a stack share them.
        self.frozen = [
            next(n for n, other in enumerate(engines) if same_frozen(other.network, engine.network))
            for engine in engines
        ]
        self.stacks: list[tuple[Kind, int, Stacked]] = []  # kind, width of a batch
        self.programs = JointPrograms()
        self.rows = RowCounts([engine.planner.participants for engine in engines], most)
        self.planner = JointPlanner(self.offsets)
        self.last_plans: Any = None  # of the round before: freed while the device trains

    def carry_out(self, runs: Sequence[Rounds[T]], ended: Callable[[int, T | BaseException], None]) -> None:
        """Train all runs to their ends; `ended` is called with each run's result or error."""
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
        waiting = [PendingRound(number, self.engines[number], *one) for number, one in assignments.items()]
        kinds = [self.kind(one) for one in waiting]
        replies: dict[int, Reply | BaseException] = {}
        for kind in dict.fromkeys(kinds):
            some = [one for one, own in zip(waiting, kinds, strict=True) if own == kind]
            try:
                replies |= {one.number: r for one, r in zip(some, self.train(some), strict=True)}
            except Exception as error:
                replies |= {one.number: error for one in some}
        return {number: replies[number] for number in assignments}

    def train(self, waiting: Sequence[PendingRound], half: bool = False) -> list[Reply]:
        """Train a round of runs of one kind, in halves if they have too many rows.

        `half`: the runs are a half, and train in the common stack even if there is only one.
        """
        rows = sum(len(one.clients) for one in waiting)
        kind, numbers = self.kind(waiting[0]), [one.number for one in waiting]
        if len(waiting) > 1 and rows > self.rows.limit(kind, numbers):
            middle = len(waiting) // 2
            return [*self.train(waiting[:middle], True), *self.train(waiting[middle:], True)]
        # One run trains in its own stack, if memory has room for that besides the common one.
        alone = len(waiting) == 1 and not half
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
        width = max(one.engine.width for one in waiting)
        stack = self.stack(waiting[0], width)
        rows = self.lay_out(waiting, [one.order for one in waiting], [one.clients for one in waiting], width)
        joint = self.planner.take(waiting, rows)
        start = self.start(waiting, joint, stack.stage.algorithm)
        event = stack.overlap.mark()
        carry = stack.run_steps(start)
        firsts = [0, *accumulate(len(own.clients) for own in rows)]
        ends = tuple(first + own.real for first, own in zip(firsts, rows, strict=False))
        living = membership(tuple(firsts[:-1]), ends, firsts[-1], start.prepared.lr.device)
        end = stack.end(start, carry, living)
        methods = [one.engine.stage.algorithm for one in waiting]
        totals = [own_totals(of_run(end.totals, n), method) for n, method in enumerate(methods)]
        means = [weighted_means(own) for own in totals]
        averages = [
            tree_foreach(foreach_add, one.order.shared, own[""]["delta"])
            for one, own in zip(waiting, means, strict=True)
        ]
        trained = [one.engine.trained_leaves(plan) for one, plan in zip(waiting, joint.plans, strict=True)]
        self.last_plans = joint.plans, start.plan
        # The host waits for the device in `read_back`: all that it can do before that is done here.
        following = self.draw_ahead(waiting, width)
        for one in waiting:
            one.engine.overlap.report_busy(event)
        joint_ahead = self.planner.prepare_ahead(waiting, following, averages)
        if joint_ahead:
            stack.backend.stage_plan(joint_ahead.prepared.plan)
        uploads = Uploads(
            end.uploads, start.prepared.facts, end.admitted, *read_back(end.uploads, end.admitted)
        )
        joint_end = JointEnd(
            stack.stage.algorithm, carry, start.anchor, end, uploads, totals, means, averages, trained
        )
        return [self.reply(one, n, firsts[n], joint_end) for n, one in enumerate(waiting)]

    def reply(self, one: PendingRound, place: int, first: int, ended: JointEnd) -> Reply:
        """The reply to the run at `place`, whose rows start at `first`; its clients' memories are stored."""
        engine, clients, algorithm = one.engine, one.clients, one.engine.stage.algorithm
        finite = all(ended.uploads.flags)  # a row that is not makes the sums of all runs NaN
        slots, uploads = ended.end.slots, ended.uploads
        if not finite and algorithm != ended.algorithm:
            slots, uploads = own_end(algorithm, ended.carry, ended.anchor, ended.end, ended.uploads.facts)
        trained, totals = ended.trained[place], ended.totals[place] if finite else None
        sums = sum_uploads(uploads, first, clients, upload_weights(algorithm), trained, totals)
        for memory in engine.changed_memories(clients, first, ended.carry, slots, uploads.flags):
            engine.memories.keep(*memory)
        return sums.reply(ended.means[place], ended.averages[place]) if finite else sums.reply()

    def lay_out(
        self,
        waiting: Sequence[PendingRound],
        orders: Sequence[Order],
        clients: Sequence[Sequence[int]],
        width: int,
    ) -> list[StackRows]:
        """The rows of each run; those of the first run are padded, so that few numbers of rows occur."""
        rows = [StackRows(o, own, len(own), width) for o, own in zip(orders, clients, strict=True)]
        if waiting[0].engine.backend.pads_rows:
            count, numbers = sum(map(len, clients)), [one.number for one in waiting]
            padding = self.rows.padded(self.kind(waiting[0]), numbers, count) - count
            rows[0] = rows[0]._replace(clients=[*clients[0], *[clients[0][0]] * padding])
        return rows

    def start(self, waiting: Sequence[PendingRound], joint: JointRows, algorithm: Algorithm) -> StackStart:
        """The start of a round of all rows, with memories for every correction of `algorithm`."""
        orders = [one.order for one in waiting]
        rows = [own._replace(order=order) for own, order in zip(joint.rows, orders, strict=True)]
        carries = [
            with_slots(one.engine.bare_carry(own), algorithm) for one, own in zip(waiting, rows, strict=True)
        ]
        members = [
            [one.engine.federation.clients[c] for c in own.clients]
            for one, own in zip(waiting, rows, strict=True)
        ]
        complete = [
            order._replace(broadcast={c.name: order.broadcast.get(c.name, {}) for c in algorithm.corrections})
            for order in orders
        ]
        averaged = all(o.shared is own for o, own in zip(orders, joint.averages, strict=False))
        offsets = [self.offsets[one.number] for one in waiting]
        anchor = joint.anchor if averaged else None
        return join_starts(complete, carries, members, offsets, joint.prepared, anchor)

    def draw_ahead(self, waiting: Sequence[PendingRound], width: int) -> list[StackRows]:
        """Start to draw the batches of the next round; empty if the clients of a run are not known."""
        orders = [next_order(one.order) for one in waiting]
        clients = [
            list(one.engine.planner.participants(order.round))
            for one, order in zip(waiting, orders, strict=True)
        ]
        if not all(clients):
            return []
        rows = self.lay_out(waiting, orders, clients, width)
        for one, own in zip(waiting, rows, strict=True):
            one.engine.planner.draw_ahead(one.engine.stage, one.engine.model, own)
        return rows

    def kind(self, one: PendingRound) -> Kind:
        """The kind of a run: runs of one kind can train side by side."""
        return self.programs.number(one.engine.stage), self.frozen[one.number]

    def stack(self, one: PendingRound, width: int) -> Stacked:
        """The common stack for runs of the same kind as `one`, whose batches have `width` samples."""
        kind, like = self.kind(one), one.engine
        joint = self.programs.stage(kind[0], like.stage)
        for known, own_width, stack in self.stacks:
            if (known, own_width) == (kind, width) and stack.stage.algorithm == joint.algorithm:
                return stack
        stack = self.build(like.network, self.whole)
        stack.begin(joint, {**like.memories.local}, frozenset())
        most = 3 + len(set(self.frozen)) - 1
        self.stacks = [
            *self.stacks[-most:],
            (kind, width, stack),
        ]  # a run does not return to an earlier stage
        return stack
