"""Several runs at once: clients of different runs are rows of one stack.

A run with one client a round cannot fill a machine; seeds and cells of a sweep can, together. Every run
goes through its own loop until it asks for a round. When all have asked, the rows of those whose steps are
the same program (joint_programs.py) train side by side, each row with the weights, learning rate and chance
of its run. What comes out for a run does not depend on the others but for rounding: a product of more rows
may be summed in another order.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from kedge.core.algorithm import Algorithm, Stage
from kedge.core.frozen import same_frozen
from kedge.core.server import Reply
from kedge.core.tree import Leaves, tree_foreach
from kedge.data.batches import Plan
from kedge.data.federation import Federation
from kedge.engines.engine import (
    Assignment,
    Mean,
    Order,
    Rounds,
    T,
    divided,
    ran_out,
    resume_run,
    told_of,
    trainable,
)
from kedge.engines.pack.joining import joined, known_together, membership, merged, of_run, spread
from kedge.engines.pack.joint_programs import JointPrograms, own_end, own_totals, with_slots
from kedge.engines.pack.rows import RowCounts
from kedge.engines.round_start import Begun, Coming, Known
from kedge.engines.stacked import Stacked
from kedge.torch_private import foreach_add

Build = Callable[[Federation], Stacked]
# Rows of the same kind train side by side: the number of their program, and the run's entry in `Pack.frozen`.
Kind = tuple[int, int]


class Waiting(NamedTuple):
    """A run that waits for a round."""

    number: int
    engine: Stacked
    order: Order
    clients: Sequence[int]


class Ahead(NamedTuple):
    """What is known of the next round of some runs, if they ask for it: of which rows, and what."""

    stages: list[Stage]
    coming: list[Coming]
    plans: list[Plan]
    whole: Known
    averages: Sequence[Leaves] = ()  # what the servers will most likely send
    rows: Leaves | None = None  # that as rows of the stack


class Pack:
    """The common stack of several runs."""

    def __init__(self, engines: Sequence[Stacked], build: Build, most: int = 0) -> None:
        """`engines` are the runs' own, for what they do alone; `build` makes the common one.

        No stack has more than `most` rows; 0: as many as memory has room for.
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
        self.stacks: list[tuple[Kind, Stacked]] = []
        self.programs = JointPrograms()
        self.rows = RowCounts(engines, most)
        self.ahead: dict[tuple[int, ...], Ahead] = {}  # by runs
        self.held: Any = None  # plans of the last round, given back while the device trains

    def carry_out(self, runs: Sequence[Rounds[T]], ended: Callable[[int, T | BaseException], None]) -> None:
        """All runs to their ends, which are told as they come: its result, or the error that a run raised."""
        replies: dict[int, Reply | BaseException | None] = dict.fromkeys(range(len(runs)))
        while replies:
            asked = {}
            for number, reply in replies.items():
                try:
                    asked[number] = resume_run(runs[number], reply)
                    continue
                except StopIteration as end:
                    ended(number, end.value)
                except BaseException as error:
                    ended(number, error)
                self.engines[number].forget()  # its memory is for the others
            replies = {**self.replies(asked)}

    def replies(self, asked: Mapping[int, Assignment]) -> dict[int, Reply | BaseException]:
        """The replies to what runs asked for, by number; an error is that of all who waited for the same."""
        waiting = [Waiting(number, self.engines[number], *one) for number, one in asked.items()]
        kinds = [self.kind(one) for one in waiting]
        replies: dict[int, Reply | BaseException] = {}
        for kind in dict.fromkeys(kinds):
            some = [one for one, own in zip(waiting, kinds, strict=True) if own == kind]
            try:
                replies |= {one.number: r for one, r in zip(some, self.trained(some), strict=True)}
            except Exception as error:  # every run that waits for this must hear of it
                replies |= {one.number: error for one in some}
        return {number: replies[number] for number in asked}

    def trained(self, asked: Sequence[Waiting], half: bool = False) -> list[Reply]:
        """The replies to rounds of runs with the same program, in halves if they are too many rows.

        `half`: the runs are a half, and train in a stack even if there is one of them only.
        """
        rows = sum(len(a.clients) for a in asked)
        if len(asked) > 1 and rows > self.rows.limit(self.kind(asked[0]), [a.number for a in asked]):
            middle = len(asked) // 2
            return [*self.trained(asked[:middle], True), *self.trained(asked[middle:], True)]
        alone = len(asked) == 1 and not half  # in its own stack, if memory has room for that, too
        if not alone or (self.rows.limited and rows <= self.rows.most):
            try:
                return self.side_by_side(asked)
            except Exception as error:
                if not ran_out(error):
                    raise
            self.rows.halve(rows)
            for _, stack in self.stacks:
                stack.forget()
            self.stacks.clear()
        return (
            self.trained(asked)
            if len(asked) > 1
            else [asked[0].engine.round(asked[0].order, asked[0].clients)]
        )

    def side_by_side(self, asked: Sequence[Waiting]) -> list[Reply]:
        """One stack of all their clients."""
        engines = [a.engine for a in asked]
        width = max(engine.width for engine in engines)
        stack = self.stack(asked[0], width)
        padding = self.padding(asked, sum(len(a.clients) for a in asked)) if stack.compiled else 0
        rows, firsts, at = [], [], 0
        for place, (_, engine, _, clients) in enumerate(asked):
            engine.width = width
            rows.append([*clients, *[clients[0]] * (0 if place else padding)])
            firsts.append(at)
            at += len(rows[-1])
        begun, plans = self.begun(asked, rows, stack.stage.algorithm)
        since = stack.mark()
        carry = stack.advanced(stack.stage, stack.model, begun, stack.compiled)
        ends = [first + len(a.clients) for a, first in zip(asked, firsts, strict=True)]
        living = membership(tuple(firsts), tuple(ends), at, begun.lr.device)
        slots, uploads, admitted, totals = stack.ended(begun, carry, living)
        methods = [engine.stage.algorithm for engine in engines]
        sums = [own_totals(of_run(totals, number), method) for number, method in enumerate(methods)]
        means = [{slot: divided(*one) for slot, one in own.items()} for own in sums]
        opened = [{k for mask in set(plan.masks) for k in trainable(stack.model, mask)} for plan in plans]
        averages = [
            tree_foreach(foreach_add, a.order.shared, own[""]["delta"])
            for a, own in zip(asked, means, strict=True)
        ]
        self.held = plans, begun.plan
        coming = sum(len(a.engine.clients_in(a.order.round + 1)) for a in asked)
        padding = self.padding(asked, coming) if coming else 0
        drawing = [a.engine.draw_ahead(a.order, 0 if place else padding) for place, a in enumerate(asked)]
        for a in asked:
            with a.engine.apart(since):
                a.engine.on_busy()
        self.look_ahead(stack, asked, averages, drawing)
        told = told_of(uploads, admitted)  # the host waits for the device: what it can do is done before
        fine = all(told[0])  # else one run's NaN is in the sums of all
        replies = []
        for place, ((_, engine, _, clients), first) in enumerate(zip(asked, firsts, strict=True)):
            mean = Mean(methods[place])
            own, total = (slots, uploads, admitted, told), sums[place]
            if not fine and methods[place] != stack.stage.algorithm:
                own = own_end(methods[place], carry, begun.shared, slots, uploads)
            after = engine.taken(clients, first, mean, begun.facts, carry, *own, total if fine else None)
            for kept in after:
                engine.memories.keep(*kept)
            found = (means[place], averages[place]) if fine else (None, None)
            replies.append(mean.reply(frozenset(opened[place]), *found))
        return replies

    def padding(self, asked: Sequence[Waiting], rows: int) -> int:
        """The rows to add to `rows` rows of these runs."""
        return self.rows.padded(self.kind(asked[0]), [a.number for a in asked], rows) - rows

    def begun(
        self, asked: Sequence[Waiting], rows: Sequence[list[int]], algorithm: Algorithm
    ) -> tuple[Begun, list[Plan]]:
        """All rows before their first step, with memories for `algorithm`; and the plan of each run."""
        offsets = [self.offsets[a.number] for a in asked]
        coming = [Coming(a.order, own, len(a.clients)) for a, own in zip(asked, rows, strict=True)]
        ahead = self.ahead.pop(tuple(a.number for a in asked), None)
        if ahead is None or not foreseen(ahead, asked, coming):
            ahead = self.known(asked, coming)
        carries = [
            with_slots(engine.start(engine.stage, order, own, False, bare=True), algorithm)
            for (_, engine, order, *_), own in zip(asked, rows, strict=True)
        ]
        members = [[a.engine.federation.clients[c] for c in own] for a, own in zip(asked, rows, strict=True)]
        broadcasts = [
            {c.name: a.order.broadcast.get(c.name, {}) for c in algorithm.corrections} for a in asked
        ]
        orders = [
            a.order._replace(broadcast=broadcast) for a, broadcast in zip(asked, broadcasts, strict=True)
        ]
        as_averaged = all(o.shared is own for o, own in zip(orders, ahead.averages, strict=False))
        shared = ahead.rows if as_averaged else None
        return joined(orders, carries, members, offsets, ahead.whole, shared), ahead.plans

    def known(self, asked: Sequence[Waiting], coming: Sequence[Coming]) -> Ahead:
        """What is known beforehand of rounds of these runs."""
        stages = [a.engine.stage for a in asked]
        own = [
            a.engine.beforehand(stage, a.engine.model, *one, False)
            for a, stage, one in zip(asked, stages, coming, strict=True)
        ]
        counts, offsets = [len(one.rows) for one in coming], [self.offsets[a.number] for a in asked]
        whole = known_together(own, counts, offsets)
        return Ahead(stages, [*coming], [one.plan for one in own], whole)

    def look_ahead(
        self,
        stack: Stacked,
        asked: Sequence[Waiting],
        averages: list[Leaves],
        drawing: Sequence[Sequence[Coming]],
    ) -> None:
        """Join what is known of the next round, whose batches every run draws.

        Of runs with one row each that is also done with what their servers will send, if they only average.
        """
        who = tuple(a.number for a in asked)
        self.ahead = {runs: one for runs, one in self.ahead.items() if not set(runs) & set(who)}
        if all(len(own) == 1 for own in drawing):
            known = self.known(asked, [own for (own,) in drawing])
            stack.table(known.whole.plan)
            if all(len(one.rows) == 1 for one in known.coming):
                known = known._replace(averages=averages, rows=spread(averages, [1] * len(averages)))
            self.ahead[who] = known

    def kind(self, one: Waiting) -> Kind:
        """The kind of a run: runs of one kind can train side by side."""
        return self.programs.number(one.engine.stage), self.frozen[one.number]

    def stack(self, one: Waiting, width: int) -> Stacked:
        """The common stack of this width for runs of the same kind as `one`."""
        kind, like = self.kind(one), one.engine
        joint = self.programs.stage(kind[0], like.stage)
        for known, stack in self.stacks:
            if known == kind and stack.width == width and stack.stage.algorithm == joint.algorithm:
                return stack
        stack = self.build(self.whole)
        stack.network = like.network
        params = {**like.memories.local}
        stack.begin(joint, params, frozenset())
        stack.model, stack.width = like.model, width
        most = 3 + len(set(self.frozen)) - 1
        self.stacks = [*self.stacks[-most:], (kind, stack)]  # a run of stages comes back to none before these
        return stack


def foreseen(ahead: Ahead, asked: Sequence[Waiting], coming: Sequence[Coming]) -> bool:
    """Whether the rounds came as they were foreseen."""

    def key(one: Coming) -> tuple[Any, ...]:
        return one.order.round, one.order.stage_round, one.order.seed, one.rows, one.real

    same = all(stage is a.engine.stage for stage, a in zip(ahead.stages, asked, strict=True))
    return same and list(map(key, ahead.coming)) == list(map(key, coming))
