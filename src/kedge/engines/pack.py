"""Several runs at once: clients of different runs are rows of one stack.

A run with one client a round cannot fill a machine; seeds and cells of a sweep can, together. Every run
goes through its own loop, in a thread of its own, and only one of them moves at a time: it goes on until it
asks for a round. When all have asked, the rows of those whose programs are the same train side by side, each
row with the weights, learning rate and chance of its run. What comes out for a run does not depend on the
others but for rounding: a product of more rows may be summed in another order.
"""

import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import torch

from kedge.core.algorithm import Algorithm, Local, Stage, Tune
from kedge.core.optimizers import SGD, Adam
from kedge.core.server import Reply
from kedge.core.tree import Leaves, Tree
from kedge.data.batches import Plan
from kedge.data.federation import Federation
from kedge.engines.engine import Mean, Order, T, divided, told_of, trainable
from kedge.engines.joining import joined, membership, merged, of_run, side_by_side
from kedge.engines.programs import bucket
from kedge.engines.stacked import Stacked

Build = Callable[[Federation], Stacked]
Program = tuple[Algorithm, Local]  # what must be the same for rows to train side by side


class Asked(NamedTuple):
    """A round that a run waits for."""

    seat: "Seat"
    order: Order
    clients: Sequence[int]


class Pack:
    """The common stack of several runs, and whose turn it is."""

    def __init__(self, engines: Sequence[Stacked], build: Build) -> None:
        """`engines` are the runs' own, for what they do alone; `build` makes the common one."""
        self.seats = [Seat(self, number, engine) for number, engine in enumerate(engines)]
        pools, self.offsets = merged([engine.federation.pool for engine in engines])
        self.whole = replace(engines[0].federation, pool=pools)
        self.build = build
        self.stacks: list[tuple[Program, Stacked]] = []
        self.turn = threading.Lock()
        self.calls = [threading.Condition(self.turn) for _ in engines]  # on which a run waits for its round
        self.active = set(range(len(engines)))
        self.asked: dict[int, Asked] = {}
        self.replies: dict[int, Reply | BaseException] = {}
        self.at_once = 0  # rows of a stack; 0: all
        self.joining = ThreadPoolExecutor(1, "kedge-plans")
        self.ahead: dict[tuple[int, ...], Future[tuple[list[Plan], Plan]]] = {}  # by runs

    @contextmanager
    def seated(self, number: int) -> Iterator["Seat"]:
        """A run's place for as long as it lasts; nobody waits for it afterwards."""
        with self.turn:
            try:
                yield self.seats[number]
            finally:
                self.active.discard(number)
                self.train_if_all_asked()
                self.pass_on()

    def round(self, seat: "Seat", order: Order, clients: Sequence[int]) -> Reply:
        """Ask for a round; it is there when all runs have asked for theirs."""
        self.asked[seat.number] = Asked(seat, order, clients)
        self.train_if_all_asked()
        while seat.number not in self.replies:
            self.pass_on()
            self.calls[seat.number].wait()
        reply = self.replies.pop(seat.number)
        if isinstance(reply, BaseException):
            raise reply
        return reply

    def train_if_all_asked(self) -> None:
        """Train what is waited for, if nobody is still on the way."""
        if not self.asked or set(self.asked) != self.active:
            return
        waiting, self.asked = [self.asked[number] for number in sorted(self.asked)], {}
        programs = [program_of(asked.seat.engine.stage) for asked in waiting]
        for program in dict.fromkeys(programs):
            some = [asked for asked, own in zip(waiting, programs, strict=True) if own == program]
            try:
                self.replies |= {a.seat.number: r for a, r in zip(some, self.trained(some), strict=True)}
            except Exception as error:  # every run that waits for this must hear of it
                self.replies |= {asked.seat.number: error for asked in some}

    def pass_on(self) -> None:
        """Call one run whose round is there: it goes on when this one waits, and calls the next then."""
        if self.replies:
            self.calls[min(self.replies)].notify()

    def trained(self, asked: Sequence[Asked]) -> list[Reply]:
        """The replies to rounds of runs with the same program; where memory does not suffice, in halves."""
        rows = [len(a.clients) for a in asked]
        if len(asked) > 1 and self.at_once and sum(rows) > self.at_once:
            half = len(asked) // 2
            return [*self.trained(asked[:half]), *self.trained(asked[half:])]
        if len(asked) == 1:
            return [asked[0].seat.engine.round(asked[0].order, asked[0].clients)]
        try:
            return self.side_by_side(asked)
        except torch.OutOfMemoryError:
            self.at_once = -(-sum(rows) // 2)
        self.stacks.clear()
        return self.trained(asked)

    def side_by_side(self, asked: Sequence[Asked]) -> list[Reply]:
        """One stack of all their clients."""
        engines = [a.seat.engine for a in asked]
        width = max(engine.width for engine in engines)
        stack = self.stack(engines[0], width)
        padding = bucket(sum(len(a.clients) for a in asked)) - sum(len(a.clients) for a in asked)
        parts, firsts, at = [], [], 0
        for number, (seat, order, clients) in enumerate(asked):
            rows = [*clients, *[clients[0]] * (padding if stack.compiled and not number else 0)]
            seat.engine.width = width
            stage, model = seat.engine.stage, seat.engine.model
            parts.append(seat.engine.begun(stage, model, order, rows, len(clients), False, bare=True))
            firsts.append(at)
            at += len(rows)
        offsets = [self.offsets[a.seat.number] for a in asked]
        begun = joined(parts, offsets, self.drawn(asked, [part.plan for part in parts]))
        stack.foreseen = partial(self.draw_ahead, stack, asked, offsets, padding if stack.compiled else 0)
        carry = stack.advanced(stack.stage, stack.model, begun, stack.compiled)
        ends = [first + len(a.clients) for a, first in zip(asked, firsts, strict=True)]
        living = membership(tuple(firsts), tuple(ends), at, begun.lr.device)
        slots, uploads, admitted, totals = stack.ended(begun, carry, living)
        sums = [of_run(totals, number) for number in range(len(asked))]
        means = [{slot: divided(*one) for slot, one in own.items()} for own in sums]
        opened = [{k for mask in set(p.plan.masks) for k in trainable(stack.model, mask)} for p in parts]
        told = told_of(uploads, admitted)  # the host waits for the device: what it can do is done before
        fine = bool(told[0].all())  # else one run's NaN is in the sums of all
        replies = []
        for number, ((seat, _, clients), first) in enumerate(zip(asked, firsts, strict=True)):
            mean = Mean(seat.engine.stage.algorithm)
            after = seat.engine.taken(
                clients, first, mean, begun.facts, carry, slots, uploads, admitted, told,
                sums[number] if fine else None,
            )  # fmt: skip
            for kept in after:
                seat.engine.memories.keep(*kept)
            replies.append(mean.reply(frozenset(opened[number]), means[number] if fine else None))
        return replies

    def draw_ahead(
        self, stack: Stacked, asked: Sequence[Asked], offsets: Sequence[int], padding: int
    ) -> None:
        """Let every run draw the batches of its next round, the first with the padding, and join them."""
        plans = [
            seat.engine.draw_ahead(order, 0 if number else padding)
            for number, (seat, order, _) in enumerate(asked)
        ]
        if all(len(own) == 1 for own in plans):
            who = tuple(a.seat.number for a in asked)
            self.ahead[who] = self.joining.submit(joined_plan, stack, [own for (own,) in plans], offsets)

    def drawn(self, asked: Sequence[Asked], plans: Sequence[Plan]) -> Plan | None:
        """The plan of these runs together, if it was foreseen as it came."""
        ahead = self.ahead.pop(tuple(a.seat.number for a in asked), None)
        if ahead is None:
            return None
        of, whole = ahead.result()
        return whole if all(a is b for a, b in zip(of, plans, strict=True)) else None

    def stack(self, like: Stacked, width: int) -> Stacked:
        """The common stack for a stage like this engine's."""
        program = program_of(like.stage)
        for known, stack in self.stacks:
            if known == program and stack.width == width:
                return stack
        stack = self.build(self.whole)
        stack.network = like.network
        params = {**like.memories.local}
        stack.begin(like.stage, params, frozenset())
        stack.model, stack.width = like.model, width
        self.stacks = [*self.stacks[-3:], (program, stack)]  # a run of stages comes back to none before these
        return stack


class Seat:
    """One run's engine in a pack: rounds are trained together, all else is its own."""

    def __init__(self, pack: Pack, number: int, engine: Stacked) -> None:
        self.pack, self.number, self.engine = pack, number, engine

    def begin(self, stage: Stage, params: Leaves, kept: frozenset[str] = frozenset()) -> None:
        """Start a stage."""
        self.engine.begin(stage, params, kept)

    def round(self, order: Order, clients: Sequence[int]) -> Reply:
        """Train these clients, beside those of the other runs."""
        return self.pack.round(self, order, clients)

    def tuned(self, order: Order, clients: Sequence[int], tune: Tune) -> Iterator[tuple[int, Leaves, Leaves]]:
        """Each client's model fine-tuned on its own data."""
        return self.engine.tuned(order, clients, tune)

    @property
    def at_once(self) -> int:
        """Models evaluated side by side."""
        return self.engine.at_once

    @property
    def beside(self) -> bool:
        """Whether its engine does not wait for what is done aside."""
        return self.engine.beside

    def aside(self, work: Callable[[], T]) -> Callable[[], T]:
        """What its engine does aside."""
        return self.engine.aside(work)

    def repeated(self, name: Any, function: Callable[..., Any]) -> Callable[..., Any]:
        """The function as its engine calls it again and again."""
        return self.engine.repeated(name, function)

    def personal(self, client: int, shared: Leaves, buffers: Leaves) -> tuple[Leaves, Leaves]:
        """A client's own model."""
        return self.engine.personal(client, shared, buffers)

    def save(self) -> Tree:
        """Every client's memory."""
        return self.engine.save()

    def load(self, saved: Tree) -> None:
        """Take saved memories up."""
        self.engine.load(saved)


def joined_plan(
    stack: Stacked, plans: Sequence[Future[Plan]], offsets: Sequence[int]
) -> tuple[list[Plan], Plan]:
    """These plans as they come, and all of them as one, with its table."""
    found = [plan.result() for plan in plans]
    whole = side_by_side(found, offsets)
    stack.table(whole)
    return found, whole


def program_of(stage: Stage) -> Program:
    """The stage but for what is a tensor in a step: the learning rate."""
    local, optimizer = stage.local, stage.local.optimizer
    if isinstance(optimizer, SGD | Adam):
        local = replace(local, optimizer=replace(optimizer, lr=1.0, decay=1.0))
    return stage.algorithm, local
