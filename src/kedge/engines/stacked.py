"""C clients at once by vmap: one row of every tensor is one client.

Clients of a chunk run in lockstep (data/batches.py). A dead row computes on a batch of weight 1 and its
result is selected away; padding has weight 0. Compiled, the number of rows is padded to a few sizes.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from kedge.core.algorithm import Stage, Tune, fitted, tuning
from kedge.core.client import Carry
from kedge.core.model import Model
from kedge.core.server import Reply
from kedge.core.tree import Leaves, Tree, row, tree_map
from kedge.data.batches import Plan, plan, step_counts, survey
from kedge.data.federation import Federation
from kedge.engines.engine import (
    Mean,
    Order,
    T,
    Told,
    Totals,
    counted,
    do_nothing,
    done_now,
    sent,
    told_of,
    trainable,
)
from kedge.engines.memory import Memories
from kedge.engines.programs import bucket, compiled, stacked_end, stacked_step, stacked_survey
from kedge.engines.round_start import Begun, Coming, Known, first_carry


class Stacked:
    """vmap over the clients of a round, in chunks."""

    at_once = 20  # models evaluated side by side
    beside = False

    def __init__(self, model: Model, federation: Federation, chunk: int = 0, compiled: bool = False) -> None:
        self.network, self.model, self.federation = model, model, federation
        self.facts = federation.facts()
        self.memories = Memories()
        self.on_busy: Callable[[], None] = do_nothing
        self.chunk, self.compiled = chunk, compiled
        self.programs: dict[Any, Callable[..., Any]] = {}

    def begin(self, stage: Stage, params: Leaves, kept: frozenset[str] = frozenset()) -> None:
        """Start a stage; memories of the slots in `kept` go on."""
        self.stage, self.model = stage, fitted(stage.algorithm, self.network)
        self.programs = {}
        self.blank: dict[int, Carry] = {}  # bare carries, by the number of rows
        self.memories.begin(stage.algorithm, self.model, params, kept)
        sizes = np.array([len(own) for own in self.federation.clients])
        self.width = int(step_counts(sizes, stage.local)[0].max())

    def round(self, order: Order, clients: Sequence[int]) -> Reply:
        """Train these clients from the order; the weighted mean of their uploads."""
        mean = Mean(self.stage.algorithm)
        size = self.chunk or len(clients)
        after: list[tuple[int, Leaves, Leaves, Tree]] = []
        trained: set[str] = set()
        for start in range(0, len(clients), size):
            after += self.stacked_round(order, clients[start : start + size], mean, trained)
        for kept in after:
            self.memories.keep(*kept)
        return mean.reply(frozenset(trained))

    def stacked_round(
        self, order: Order, clients: Sequence[int], mean: Mean, trained: set[str]
    ) -> list[tuple[int, Leaves, Leaves, Tree]]:
        """One chunk: its uploads go into `mean`; what its clients will remember is returned."""
        begun = self.begun(self.stage, self.model, order, self.rows(clients)[0], len(clients), self.compiled)
        since = self.mark()
        carry = self.advanced(self.stage, self.model, begun, self.compiled)
        trained |= {k for mask in set(begun.plan.masks) for k in trainable(self.model, mask)}
        living = torch.arange(len(begun.members), device=begun.lr.device) < len(clients)
        slots, uploads, admitted, totals = self.ended(begun, carry, living)
        with self.apart(since):
            self.on_busy()
        told = told_of(uploads, admitted)
        return self.taken(clients, 0, mean, begun.facts, carry, slots, uploads, admitted, told, totals)

    def ended(
        self, begun: Begun, carry: Carry, living: Tensor
    ) -> tuple[dict[str, Any], dict[str, Any], Tensor, Totals]:
        """Memories and uploads of every row, whether they are finite, and sums over the living.

        Where rows belong to several runs, `living` has a row for each run, and so has every sum.
        """
        algorithm, momentum = self.stage.algorithm, self.stage.local.optimizer.momentum
        sums = self.surveyed(begun, carry) if algorithm.needs_class_means else None
        function = partial(stacked_end, algorithm, self.model, momentum, begun.apart)
        end = self.program("end", function, self.compiled)
        found: tuple[dict[str, Any], dict[str, Any], Tensor, Totals] = end(
            carry, begun.facts, begun.shared, begun.broadcast, begun.lr,
            *counted(begun.plan, begun.lr), living, sums,
        )  # fmt: skip
        return found

    def taken(
        self,
        clients: Sequence[int],
        first: int,
        mean: Mean,
        facts: Leaves,
        carry: Carry,
        slots: Tree,
        uploads: dict[str, Any],
        admitted: Tensor,
        told: Told,
        totals: Totals | None,
    ) -> list[tuple[int, Leaves, Leaves, Tree]]:
        """Put the uploads of these clients (rows from `first` on) into the mean; what they will remember."""
        some = slice(first, first + len(clients))
        flags, losses = told[0][some], told[1][some]
        if totals is None or not all(flags):
            uploads, facts = (tree_map(lambda v: v[some], tree) for tree in (uploads, facts))
        mean.add(uploads, facts, admitted[some], clients, totals, (flags, losses))
        if not self.memories.needed:
            return []
        kept = {
            "params": {k: carry["params"][k] for k in self.memories.kept},
            "buffers": carry["buffers"] if self.model.statistics == "local" else {},
            "slots": slots,
        }
        mine = {c: row(kept, first + number) for number, c in enumerate(clients) if flags[number]}
        return [(c, own["params"], own["buffers"], own["slots"]) for c, own in mine.items()]

    def rows(self, clients: Sequence[int]) -> tuple[list[int], int]:
        """The client of each row of a stack of these, and how many rows at its end are padding."""
        padding = bucket(len(clients)) - len(clients) if self.compiled else 0
        return [*clients, *[clients[0]] * padding], padding

    def beforehand(
        self, stage: Stage, model: Model, order: Order, rows: Sequence[int], real: int, tuning: bool
    ) -> Known:
        """What is known of these rows."""
        plan = self.plan(stage, model, order, rows, real, tuning)
        return Known(plan, self.facts_of(rows), self.rate(stage, order))

    def plan(
        self, stage: Stage, model: Model, order: Order, rows: Sequence[int], real: int, tuning: bool
    ) -> Plan:
        """The batches of these rows; those after the first `real` are dead."""
        data = self.federation
        own = plan(
            [data.clients[c] for c in rows], rows, stage.local, stage.algorithm.schedule, len(model.units),
            order.seed, order.round, order.stage_round, width=self.width, random=model.random, tuning=tuning,
            augment=data.augment,
        )  # fmt: skip
        own.alive[:, real:] = False
        return own

    def facts_of(self, rows: Sequence[int]) -> Leaves:
        """The facts of each row's client."""
        ids = sent(np.array(rows), self.federation.pool.x.device)
        return {k: v[ids] for k, v in self.facts.items()}

    def rate(self, stage: Stage, order: Order) -> Tensor:
        """The learning rate of the round."""
        like = next(iter(order.shared.values()))
        return torch.full((), stage.local.optimizer.rate(order.round), dtype=like.dtype, device=like.device)

    def table(self, plan: Plan) -> Tensor:
        """The plan's table."""
        return torch.from_numpy(plan.table)

    def clients_in(self, round: int) -> Sequence[int]:
        """The clients that will take part in a round; none if that is not known."""
        return ()

    def draw_ahead(self, order: Order, padding: int | None = None) -> list[Coming]:
        """Nothing is drawn ahead where the host itself trains."""
        return []

    def tuned(self, order: Order, clients: Sequence[int], tune: Tune) -> Iterator[tuple[int, Leaves, Leaves]]:
        """Each client's model fine-tuned on its own data: client, parameters, statistics; nothing is kept."""
        algorithm = tuning(self.stage.algorithm, tune)
        stage = replace(self.stage, algorithm=algorithm, local=replace(self.stage.local, epochs=tune.epochs))
        size = self.chunk or len(clients)
        for start in range(0, len(clients), size):
            some = clients[start : start + size]
            model = fitted(algorithm, self.model)
            begun = self.begun(stage, model, order, some, len(some), False, tuning=True)
            carry = self.advanced(stage, model, begun, False, tuning=True)
            for number, client in enumerate(some):
                yield client, row(carry["params"], number), row(carry["buffers"], number)

    def begun(
        self, stage: Stage, model: Model, order: Order, rows: Sequence[int], real: int, compiled: bool,
        tuning: bool = False,
    ) -> Begun:  # fmt: skip
        """These rows before their first step, dead after the first `real`."""
        own, facts, lr = self.beforehand(stage, model, order, rows, real, tuning)
        carry = self.start(stage, order, rows, compiled)
        if tuning:
            carry["state"] = {}
        members = [self.federation.clients[c] for c in rows]
        return Begun(members, own, carry, facts, order.shared, {} if tuning else order.broadcast, lr)

    def advanced(
        self, stage: Stage, model: Model, begun: Begun, compiled: bool, tuning: bool = False
    ) -> Carry:
        """The carry after all steps of the plan."""
        data, own, carry, device = self.federation, begun.plan, begun.carry, begun.lr.device
        # As they were sent, or as the client left them. Copies: a program that saw the carry's own here
        # would be made anew for the second step, when they are no longer that.
        statistics = tree_map(torch.clone, carry["buffers"])
        anchor = tree_map(torch.clone, begun.shared) if begun.apart else begun.shared
        index = torch.from_numpy(own.index).to(device)
        weight = torch.from_numpy(own.weight).to(device, begun.lr.dtype)
        alive = torch.from_numpy(own.alive).to(device)
        key = torch.from_numpy(own.key).to(device)
        moves = torch.from_numpy(own.moves).to(device)
        for number, mask in enumerate(own.masks):
            leaves = trainable(model, mask)
            masked = compiled or not own.alive[number].all()
            advance = self.program(
                (tuning, leaves, masked, begun.apart),
                partial(stacked_step, stage.algorithm, model, stage.local, data, leaves, masked, begun.apart),
                compiled,
            )
            carry = advance(
                carry, data.pool.x, data.pool.y, index[number], weight[number], key[number], moves[number],
                alive[number], begun.facts, statistics, anchor, begun.broadcast, begun.lr,
            )  # fmt: skip
        return carry

    @torch.no_grad()
    def surveyed(self, begun: Begun, carry: Carry) -> Leaves:
        """Per row: the sums by class of its client's features over its whole training set."""
        data, like = self.federation, begun.lr
        index, weight = survey(begun.members, self.width)
        where, real = torch.from_numpy(index).to(like.device), torch.from_numpy(weight).to(like)
        look = self.program("survey", partial(stacked_survey, self.model, data), self.compiled)
        sums: Leaves = {}
        for number in range(len(index)):
            part = look(
                carry["params"], carry["buffers"], data.pool.x, data.pool.y, where[number], real[number]
            )
            sums = {k: v + sums[k] if sums else v for k, v in part.items()}
        return sums

    def start(
        self, stage: Stage, order: Order, rows: Sequence[int], compiled: bool, bare: bool = False
    ) -> Carry:
        """The stacked carry; a bare one is without what is shared, and kept where clients keep nothing."""
        constant = bare and not (self.memories.needed or self.memories.local or order.buffers)
        if constant and len(rows) in self.blank:
            return self.blank[len(rows)]
        carry = first_carry(stage, self.memories, order, rows, compiled, bare)
        if constant:
            self.blank[len(rows)] = carry
        return carry

    def program(self, key: Any, function: Callable[..., Any], compile: bool) -> Callable[..., Any]:
        """The function, compiled if asked for; made once for each key."""
        if (key, compile) not in self.programs:
            self.programs[key, compile] = compiled(function, self.network.half) if compile else function
        return self.programs[key, compile]

    def aside(self, work: Callable[[], T]) -> Callable[[], T]:
        """The work, done at once."""
        return done_now(work)

    def repeated(self, name: Any, function: Callable[..., Any]) -> Callable[..., Any]:
        """The function as it is."""
        return function

    def mark(self) -> Any:
        """Where a device's stream is now."""
        return None

    def apart(self, since: Any) -> AbstractContextManager[None]:
        """What is done here need not wait for what a device began since."""
        return nullcontext()

    def forget(self) -> None:
        """Nothing is held that the next round could not do without."""

    def personal(self, client: int, shared: Leaves, buffers: Leaves) -> tuple[Leaves, Leaves]:
        """A client's own model: the shared leaves with those it keeps."""
        return self.memories.own_model(client, shared, buffers)

    def save(self) -> Tree:
        """Every client's memory."""
        return self.memories.save()

    def load(self, saved: Tree) -> None:
        """Take saved memories up."""
        self.memories.load(saved)
