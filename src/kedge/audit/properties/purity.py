"""Hooks, engines and the server do not modify their arguments, and hooks return trees of the right layout."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch

from kedge.audit.finding import Finding, no_violations
from kedge.audit.problems import CLASSES, IMAGE, SIZES, convolutional, federation, perceptron
from kedge.audit.training import ENGINES
from kedge.core.algorithm import Algorithm, LocalTraining, Stage
from kedge.core.correction import ClassMeans, Cohort, Correction, End, Step, reached_leaves
from kedge.core.model import Batch, Output
from kedge.core.optimizers import SGD
from kedge.core.server import broadcast, initial_server, server_update
from kedge.core.tree import Leaves, Tree, flatten, scale, sub, tree_to
from kedge.engines.engine import Order

LOCAL = LocalTraining(2, 4, SGD(0.1, weight_decay=1e-2), clip=1.0)
Layout = Mapping[str, tuple[tuple[int, ...], torch.dtype]]


def layout(tree: Tree) -> Layout:
    """Name, shape and dtype of every tensor."""
    return {k: (tuple(v.shape), v.dtype) for k, v in flatten(tree).items()}


def random_like(tree: Tree, seed: int) -> dict[str, Any]:
    """Random numbers in the layout of `tree`."""
    generator = torch.Generator().manual_seed(seed)

    def fill(part: Tree) -> dict[str, Any]:
        return {
            k: torch.randn(v.shape, generator=generator, dtype=v.dtype)
            if isinstance(v, torch.Tensor)
            else fill(v)
            for k, v in part.items()
        }

    return fill(tree)


@dataclass(frozen=True)
class Arguments:
    """The arguments of every hook, filled with random numbers."""

    params: Leaves
    anchor: Leaves
    grads: Leaves
    state: dict[str, Any]
    server: dict[str, Any]
    step: Step
    end: End

    def tensors(self) -> Leaves:
        """Every tensor that a hook could modify."""
        parts = {"params": self.params, "anchor": self.anchor, "grads": self.grads, "delta": self.end.delta}
        rest = {
            "state": self.state,
            "server": self.server,
            "broadcast": self.end.broadcast,
            "times": self.end.lr_time,
        }
        return flatten({**parts, **rest})


def arguments(correction: Correction, dtype: torch.dtype) -> Arguments:
    """Arguments for the hooks of `correction`, on the perceptron and four samples."""
    data, model = federation(dtype=dtype), perceptron()
    start = tree_to(model.init(0)[0], dtype)
    params, anchor, grads = (random_like(start, seed) for seed in (1, 2, 3))
    leaves = reached_leaves(correction, model, anchor, {})
    state, server = (
        random_like(correction.init_client(leaves), 4),
        random_like(correction.init_server(leaves), 5),
    )
    facts = {k: v[2] for k, v in data.facts().items()}
    rows = torch.arange(4)
    x = data.prepare(data.pool.x[rows])
    batch = Batch(x, data.pool.y[rows], torch.ones(4, dtype=dtype), torch.zeros(2, dtype=torch.int64))
    out = model.apply(params, {}, batch, True)[0]

    def at(leaves: Leaves) -> Output:
        return model.apply({**params, **leaves}, {}, batch, False)[0]

    sent = correction.broadcast(server)
    step = Step(params, anchor, batch, out, at, state, sent, facts, torch.tensor(2), tuple(start))
    lr = torch.tensor(0.1, dtype=dtype)
    # The last leaf was frozen in all steps of the round.
    times = {k: lr * (0 if k == list(start)[-1] else 3) for k in start}
    delta = sub(params, anchor)
    means = ClassMeans(torch.ones(CLASSES, out.features.shape[1], dtype=dtype), facts["class_counts"])
    end = End(params, anchor, delta, lr, torch.tensor(3.0, dtype=dtype), times, state, sent, facts, means)
    return Arguments(params, anchor, grads, state, server, step, end)


class Returned(NamedTuple):
    """The tree that a hook returned, and the layout that it must have."""

    hook: str
    tree: Tree
    required: Layout


def call_hooks(correction: Correction, args: Arguments) -> list[Returned]:
    """Call every hook that returns trees."""
    shared, delta = layout(args.anchor), layout(args.end.delta)
    first_two = dict(list(args.grads.items())[:2])  # a schedule may leave few leaves to train
    unclipped = correction.unclipped_gradient(args.step)
    memory, upload = correction.finish(args.end)
    cohort = Cohort(0, 2, len(SIZES), args.anchor)
    update, server = correction.server(args.end.delta, upload, args.server, cohort)
    views = correction.views(args.anchor, args.server)
    return [
        *(
            Returned("gradient", correction.gradient(grads, args.step), layout(grads))
            for grads in (args.grads, first_two)
        ),
        Returned(
            "unclipped_gradient",
            unclipped,
            {k: v for k, v in layout(args.params).items() if k in unclipped},
        ),
        Returned("advance", correction.advance(args.step), layout(args.state)),
        Returned("finish", memory, layout(args.state)),
        Returned("send", correction.send(args.end.delta, args.end), delta),
        Returned("broadcast", correction.broadcast(args.server), layout(args.end.broadcast)),
        Returned("server", update, delta),
        Returned("server", server, layout(args.server)),
        *(Returned("views", leaves, shared) for leaves in views.values()),
    ]


def hooks_keep_layout(algorithm: Algorithm) -> Finding:
    """Every hook of every correction returns the right names, shapes and dtypes, in float32 and float64."""
    wrong: list[str] = []
    for correction in algorithm.corrections:
        for dtype in (torch.float32, torch.float64):
            args = arguments(correction, dtype)
            returned = call_hooks(correction, args)
            wrong += [
                f"{correction.name}.{hook}" for hook, tree, required in returned if layout(tree) != required
            ]
            loss = correction.loss(args.step)
            if isinstance(loss, torch.Tensor) and (loss.shape, loss.dtype) != ((), dtype):
                wrong.append(f"{correction.name}.loss")
            upload = layout(correction.finish(args.end)[1])
            if not {uploaded_dtype for _, uploaded_dtype in upload.values()} <= {dtype}:
                wrong.append(f"{correction.name}.finish, upload")
    return no_violations(hook_count(algorithm), wrong)


def hook_count(algorithm: Algorithm) -> str:
    """The number of corrections whose hooks are called, as text."""
    return f"every hook of {len(algorithm.corrections)} corrections"


def hooks_modify_nothing(algorithm: Algorithm) -> Finding:
    """A call of every hook of a correction changes no bit of the arguments."""
    wrong = []
    for correction in algorithm.corrections:
        args = arguments(correction, torch.float64)
        before = {k: v.clone() for k, v in args.tensors().items()}
        correction.loss(args.step)
        call_hooks(correction, args)
        after = args.tensors()
        wrong += [f"{correction.name}: {k}" for k, v in before.items() if not torch.equal(v, after[k])]
    return no_violations(hook_count(algorithm), wrong, "modified")


def memories_start_equal(algorithm: Algorithm) -> Finding:
    """Memories start with zeros for any model, so that clients that join early and late start alike."""
    wrong = []
    for correction in algorithm.corrections:
        anchor = reached_leaves(correction, perceptron(), arguments(correction, torch.float64).anchor, {})
        first, later = correction.init_client(anchor), correction.init_client(scale(2.0, anchor))
        if layout(first) != layout(later) or any(v.any() for v in flatten(first).values()):
            wrong.append(correction.name)
    return no_violations(f"{len(algorithm.corrections)} corrections", wrong)


def copy_of(tree: Tree) -> Leaves:
    """Copies of all tensors, as a flat dict."""
    return {k: v.clone() for k, v in flatten(tree).items()}


def rounds_modify_nothing(algorithm: Algorithm) -> Finding:
    """A round changes no bit of the server state, memories, samples and facts, on both engines."""
    data, model = federation(shape=IMAGE), convolutional(algorithm, statistics="local")
    wrong = []
    for name, make in ENGINES.items():
        engine = make(model, data)
        params, buffers = (tree_to(part, torch.float64) for part in model.init(0))
        server = initial_server(algorithm, model, params, buffers)
        engine.begin(Stage(algorithm, 3, LOCAL), params, frozenset())
        for round in range(3):
            order = Order(round, round, 0, server.shared, server.buffers, broadcast(algorithm, server))
            state = {
                "server": server._asdict(),
                "memories": engine.save(),
                "params": params,
                "pool": {"x": data.pool.x},
                "facts": engine.facts,
            }
            before = copy_of(state)
            reply = engine.train(order, [0, 2, 3]).reply()
            mean = copy_of(reply.mean)
            after = server_update(algorithm, server, reply, len(SIZES), round)
            wrong += [f"{name}, {k}" for k, v in flatten(state).items() if not torch.equal(v, before[k])]
            wrong += [f"{name}, {k}" for k, v in flatten(reply.mean).items() if not torch.equal(v, mean[k])]
            server = after
    return no_violations("three rounds on both engines", wrong, "modified")
