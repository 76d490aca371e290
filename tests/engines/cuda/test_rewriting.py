"""Simplified graphs compute the same results with fewer operators."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.func import vmap
from torch.fx import GraphModule
from torch.fx.experimental.proxy_tensor import make_fx
from torch.nn.functional import pad

from kedge.core.tree import sqnorm
from kedge.engines.cuda.rewriting import aten, calls, remove_padding, rewrite
from kedge.engines.cuda.rounding import inputs, read_copies, rounded_inputs

WIDE = [1, 1, 0, 2]  # around the last two axes


def written(function: Callable[..., object], *values: Tensor) -> GraphModule:
    return make_fx(function, tracing_mode="fake")(*values)


def squared(v: Tensor) -> Tensor:
    return v * v


def of_padding(graph: GraphModule) -> bool:
    """Whether a sum still runs over what is padded."""

    def below(node: object) -> bool:
        found = getattr(node, "target", None) is aten.constant_pad_nd.default
        return found or any(below(one) for one in getattr(node, "all_input_nodes", ()))

    return any(below(node) for node in calls(graph, aten.sum.dim_IntList))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_norms_of_padded_gradients_are_those_of_what_was_padded(dtype: torch.dtype) -> None:
    def function(v: Tensor, turned: Tensor) -> Tensor:
        def squares(v: Tensor, turned: Tensor) -> Tensor:
            wide = {"a": pad(v, WIDE).to(torch.float32), "b": pad(turned.permute(1, 2, 0), WIDE)}
            return sqnorm(wide)

        return vmap(squares)(v, turned)

    values = torch.randn(3, 4, 1, 1, dtype=dtype), torch.randn(3, 2, 5, 2)
    graph = written(function, *values)
    assert of_padding(graph)
    graph = rewrite(graph)
    assert not of_padding(graph)
    torch.testing.assert_close(graph(*values), function(*values))


@pytest.mark.parametrize(
    "function",
    [
        pytest.param(lambda v: squared(pad(v, WIDE)).sum((0, 2)), id="an axis that is padded stays"),
        pytest.param(lambda v: squared(pad(v, WIDE)).permute(2, 0, 1).sum((1, 2)), id="the same, turned"),
        pytest.param(lambda v: squared(pad(v, WIDE, value=1.0)).sum((0, 1, 2)), id="padded with ones"),
        pytest.param(lambda v: squared(pad(v, [0, -1])).sum((0, 1, 2)), id="cropped"),
        pytest.param(lambda v: (pad(v, WIDE) + 1).sum((0, 1, 2)), id="no product"),
    ],
)
def test_other_sums_of_what_is_padded_stay(function: Callable[[Tensor], Tensor]) -> None:
    v = torch.randn(3, 4, 2)
    graph = written(function, v)
    before = graph.code
    remove_padding(graph)
    graph.recompile()
    assert graph.code == before


def step(weight: Tensor, kernel: Tensor, frozen: Tensor, rate: Tensor, x: Tensor) -> tuple[()]:
    """A step in mixed precision: a matrix transposed before it is rounded, a kernel, and a frozen weight."""
    half = torch.bfloat16
    out = x.to(half) @ weight.transpose(0, 1).to(half) * kernel.to(half).sum() + frozen.to(half)
    weight.copy_(weight - rate * out.float().mean(0)[:, None] * weight)
    kernel.copy_(kernel - rate * kernel.to(half).float())
    return ()


def test_copies_hold_what_rounding_would_give() -> None:
    def fresh() -> list[Tensor]:
        torch.manual_seed(0)
        shapes = (5, 7), (3, 3), (5,), (), (4, 7)
        return [torch.randn(shape) for shape in shapes]

    values = fresh()
    graph = written(step, *values)
    assert rounded_inputs(graph, 5) == [0, 1, 2, 4]
    which = rounded_inputs(graph, 3)  # the batch is another one in every step
    assert which == [0, 1, 2]
    graph = read_copies(graph, which)
    assert [len(inputs(graph)), rounded_inputs(graph, 3)] == [8, []]
    copies = [values[number].to(torch.bfloat16) for number in which]
    plain = fresh()
    for _ in range(3):
        step(*plain)
        graph(*values, *copies)
    for left, right in zip(values, plain, strict=True):
        assert torch.equal(left, right)
    for number, copy in zip(which, copies, strict=True):
        assert torch.equal(copy, values[number].to(torch.bfloat16))
    assert not torch.equal(values[0], fresh()[0])


@pytest.mark.parametrize("side", [1, 3])
@pytest.mark.parametrize("bias", [True, False])
def test_gradients_of_convolutions_of_one_pixel_have_a_known_layout(side: int, bias: bool) -> None:
    """cuDNN and torch's compiler disagree about the memory format of an image of one pixel."""

    def function(x: Tensor, w: Tensor, b: Tensor) -> tuple[Tensor, ...]:
        def loss(w: Tensor, x: Tensor, b: Tensor) -> Tensor:
            return squared(torch.conv2d(x, w, b if bias else None, padding=1)).sum()

        found: tuple[Tensor, ...] = vmap(torch.func.grad(loss, (0, 1, 2)))(w, x, b)
        return found

    x, w, b = torch.randn(2, 4, 6, side, side), torch.randn(2, 5, 6, 3, 3), torch.randn(2, 5)
    graph = rewrite(written(function, x, w, b))
    dense = calls(graph, torch.ops.kedge.contiguous_convolution_backward.default)
    assert len(dense) == (1 if side == 1 else 0)
    for found, expected in zip(graph(x, w, b), function(x, w, b), strict=True):
        torch.testing.assert_close(found, expected)


def test_the_operator_for_convolutions_of_one_pixel_keeps_what_it_promises() -> None:
    x, w, g = torch.randn(4, 6, 1, 1), torch.randn(5, 6, 3, 3), torch.randn(4, 5, 1, 1)
    settings = None, [1, 1], [1, 1], [1, 1], False, [0, 0], 1, [True, True, False]
    own = torch.ops.kedge.contiguous_convolution_backward.default
    torch.library.opcheck(own, (g, x, w, *settings), test_utils=("test_schema", "test_faketensor"))
    torch.library.opcheck(
        own, (g, x, w.to(memory_format=torch.channels_last), *settings), test_utils="test_faketensor"
    )
