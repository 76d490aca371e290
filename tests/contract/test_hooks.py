"""Every hook returns the structure, shapes and dtypes it was given, and modifies nothing."""

from dataclasses import dataclass
from typing import Any

import pytest
import torch
from tests.contract.algorithms import ALGORITHMS, BUILT_IN
from tests.contract.problem import CLASSES, SIZES, federation, perceptron

from kedge.core.correction import ClassMeans, Cohort, Correction, End, Step, within
from kedge.core.model import Batch, Output
from kedge.core.tree import Leaves, Tree, flatten, scale, sub, tree_to

CORRECTIONS: dict[str, Correction] = {
    f"{name}-{correction.name}": correction
    for name, algorithm in ALGORITHMS.items()
    for correction in algorithm.corrections
}
each_correction = pytest.mark.parametrize("correction", CORRECTIONS.values(), ids=CORRECTIONS)
each_dtype = pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=["float32", "float64"])


def layout(tree: Tree) -> dict[str, tuple[tuple[int, ...], torch.dtype]]:
    """Name, shape and dtype of every tensor."""
    return {k: (tuple(v.shape), v.dtype) for k, v in flatten(tree).items()}


def drawn(tree: Tree, seed: int) -> dict[str, Any]:
    """Random numbers in the layout of a tree."""
    chance = torch.Generator().manual_seed(seed)

    def fill(part: Tree) -> dict[str, Any]:
        return {
            k: torch.randn(v.shape, generator=chance, dtype=v.dtype)
            if isinstance(v, torch.Tensor)
            else fill(v)
            for k, v in part.items()
        }

    return fill(tree)


@dataclass(frozen=True)
class Scene:
    """All that hooks are called with, random numbers everywhere."""

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


def scene(correction: Correction, dtype: torch.dtype) -> Scene:
    data, model = federation(dtype=dtype), perceptron(of=BUILT_IN["moon"])
    start = tree_to(model.init(0)[0], dtype)
    params, anchor, grads = drawn(start, 1), drawn(start, 2), drawn(start, 3)
    known = within(correction, model, anchor, {})
    state, server = drawn(correction.init_client(known), 4), drawn(correction.init_server(known), 5)
    facts = {k: v[2] for k, v in data.facts().items()}
    rows = torch.arange(4)
    x = data.prepare(data.pool.x[rows])
    batch = Batch(x, data.pool.y[rows], torch.ones(4, dtype=dtype), torch.zeros(2, dtype=torch.int64))
    out = model.apply(params, {}, batch, True)[0]

    def at(leaves: Leaves) -> Output:
        return model.apply({**params, **leaves}, {}, batch, False)[0]

    sent = correction.broadcast(server)
    step = Step(params, anchor, batch, out, at, state, sent, facts, tuple(start))
    lr = torch.tensor(0.1, dtype=dtype)
    # the last leaf was frozen all round
    times = {k: lr * (0 if k == list(start)[-1] else 3) for k in start}
    delta = sub(params, anchor)
    means = ClassMeans(torch.ones(CLASSES, out.features.shape[1], dtype=dtype), facts["class_counts"])
    end = End(params, anchor, delta, lr, torch.tensor(3.0, dtype=dtype), times, state, sent, facts, means)
    return Scene(params, anchor, grads, state, server, step, end)


@each_correction
@each_dtype
def test_hooks_preserve_structure_shapes_and_dtypes(correction: Correction, dtype: torch.dtype) -> None:
    given = scene(correction, dtype)
    loss = correction.loss(given.step)
    if isinstance(loss, torch.Tensor):
        assert (loss.shape, loss.dtype) == ((), dtype)
    some = dict(list(given.grads.items())[:2])  # a schedule may leave few leaves to train
    for grads in (given.grads, some):
        assert layout(correction.gradient(grads, given.step)) == layout(grads)
    unclipped = layout(correction.unclipped_gradient(given.step))
    assert unclipped.items() <= layout(given.params).items()
    assert layout(correction.advance(given.step)) == layout(given.state)
    memory, upload = correction.finish(given.end)
    assert layout(memory) == layout(given.state)
    assert {kind for _, kind in layout(upload).values()} <= {dtype}
    assert layout(correction.send(given.end.delta, given.end)) == layout(given.end.delta)
    assert layout(correction.broadcast(given.server)) == layout(given.end.broadcast)
    cohort = Cohort(0, 2, len(SIZES), given.anchor)
    update, server = correction.server(given.end.delta, upload, given.server, cohort)
    assert layout(update) == layout(given.end.delta)
    assert layout(server) == layout(given.server)
    for leaves in correction.views(given.anchor, given.server).values():
        assert layout(leaves) == layout(given.anchor)


@each_correction
def test_hooks_modify_nothing_they_are_given(correction: Correction) -> None:
    given = scene(correction, torch.float64)
    before = {k: v.clone() for k, v in given.tensors().items()}
    correction.loss(given.step)
    correction.gradient(given.grads, given.step)
    correction.unclipped_gradient(given.step)
    correction.advance(given.step)
    _, upload = correction.finish(given.end)
    correction.send(given.end.delta, given.end)
    correction.server(given.end.delta, upload, given.server, Cohort(0, 2, len(SIZES), given.anchor))
    after = given.tensors()
    assert all(torch.equal(v, after[k]) for k, v in before.items())


@each_correction
def test_memories_start_at_the_same_point_for_everybody(correction: Correction) -> None:
    """A client that joins late begins as one that was there from the start would have."""
    anchor = within(correction, perceptron(), scene(correction, torch.float64).anchor, {})
    first, later = correction.init_client(anchor), correction.init_client(scale(2.0, anchor))
    assert layout(first) == layout(later)
    assert not any(v.any() for v in flatten(first).values())
