"""Every private name of torch that kedge uses exists in the installed torch and behaves as kedge expects."""

import subprocess
import sys
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.func import grad, vmap

from kedge import torch_private
from kedge.torch_private import (
    AnyBatchNorm,
    AnyDropout,
    AnyInstanceNorm,
    CInterpreter,
    DeviceType,
    FakeTensorMode,
    TorchDispatchMode,
    TracingContext,
    TransformType,
    coerce_cinterpreter,
    compile_graph,
    compiler_options,
    dynamo_config,
    foreach_add,
    foreach_copy_,
    foreach_div,
    foreach_norm,
    forward_pre_hooks,
    get_unwrapped,
    has_dispatch_mode,
    is_batchedtensor,
    is_gradtrackingtensor,
    is_make_fx_tracing,
    operator_graph,
    peek_interpreter_stack,
    set_vmap_fallback_warning,
    trace_random_functions,
    tracing,
    tree_flatten,
    tree_leaves,
    tree_map_only,
    tree_unflatten,
)


def test_every_name_is_there() -> None:
    assert all(hasattr(torch_private, name) for name in torch_private.__all__)


@pytest.mark.slow
def test_importing_the_module_does_not_import_the_compiler() -> None:
    program = (
        "import sys, kedge.torch_private\n"
        "assert not [name for name in ('torch._dynamo', 'torch._inductor') if name in sys.modules]"
    )
    subprocess.run([sys.executable, "-c", program], check=True)


def test_foreach_functions_compute_one_result_per_tensor() -> None:
    left, right = [torch.tensor([1.0, 2.0]), torch.tensor(3.0)], [torch.tensor([5.0, 5.0]), torch.tensor(1.0)]
    assert [v.tolist() for v in foreach_add(left, right)] == [[6, 7], 4]
    assert [v.tolist() for v in foreach_div(left, torch.tensor(2.0))] == [[0.5, 1], 1.5]
    assert [v.item() for v in foreach_norm(left, float("inf"))] == [2, 3]
    foreach_copy_(left, right)
    assert [v.tolist() for v in left] == [[5, 5], 1]


@pytest.mark.parametrize(
    ("kind", "layers"),
    [
        (AnyBatchNorm, (nn.BatchNorm1d(2), nn.BatchNorm3d(2), nn.SyncBatchNorm(2), nn.LazyBatchNorm2d())),
        (AnyInstanceNorm, (nn.InstanceNorm1d(2), nn.InstanceNorm3d(2), nn.LazyInstanceNorm2d())),
        (AnyDropout, (nn.Dropout(), nn.Dropout2d(), nn.AlphaDropout(), nn.FeatureAlphaDropout())),
    ],
    ids=["batch norm", "instance norm", "dropout"],
)
def test_a_base_class_covers_the_layers_of_its_family(kind: type, layers: tuple[nn.Module, ...]) -> None:
    assert all(isinstance(layer, kind) for layer in layers)
    assert not isinstance(nn.GroupNorm(1, 2), kind)


def test_forward_pre_hooks_are_those_that_were_registered() -> None:
    layer = nn.Linear(1, 1)
    assert list(forward_pre_hooks(layer)) == []
    layer.register_forward_pre_hook(print)
    assert list(forward_pre_hooks(layer)) == [print]


def test_the_interpreter_stack_shows_which_transform_is_innermost() -> None:
    seen: list[Any] = []

    def recorded_sum(x: Tensor) -> Tensor:
        top = peek_interpreter_stack()
        assert isinstance(top, CInterpreter)
        seen.append(coerce_cinterpreter(top).key())
        return x.sum()

    vmap(recorded_sum)(torch.ones(2, 3))
    grad(recorded_sum)(torch.ones(3))
    vmap(grad(recorded_sum))(torch.ones(2, 3))
    grad(lambda x: vmap(recorded_sum)(x).sum())(torch.ones(2, 3))
    assert seen == [TransformType.Vmap, TransformType.Grad, TransformType.Grad, TransformType.Vmap]
    assert not isinstance(peek_interpreter_stack(), CInterpreter)


def test_wrapped_tensors_show_their_transform_and_the_tensor_inside() -> None:
    seen: list[bool] = []

    def recorded_sum(x: Tensor) -> Tensor:
        seen.extend((is_gradtrackingtensor(x), is_batchedtensor(x), is_batchedtensor(get_unwrapped(x))))
        return x.sum()

    vmap(grad(recorded_sum))(torch.ones(2, 3))
    assert seen == [True, False, True]
    assert not is_batchedtensor(torch.ones(2))


def test_make_fx_reports_that_it_is_tracing() -> None:
    seen = []

    def recorded_sum(x: Tensor) -> Tensor:
        seen.append(is_make_fx_tracing())
        return x + 1

    recorded_sum(torch.ones(2))
    operator_graph(recorded_sum, [torch.ones(2)])
    assert seen == [False, True]


class Recorder(TorchDispatchMode):  # type: ignore[no-untyped-call]  # torch leaves it untyped
    """Records the names of the operators called, and whether a dispatch mode was active around them."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.names: list[str] = []

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        self.names.append(str(func))
        return func(*args, **(kwargs or {}))


def test_a_dispatch_mode_sees_every_operator_and_is_known_to_be_active() -> None:
    assert not has_dispatch_mode()
    with Recorder() as recorder:
        assert has_dispatch_mode()
        torch.ones(2) @ torch.ones(2)
    assert recorder.names == ["aten.ones.default", "aten.ones.default", "aten.dot.default"]
    assert not has_dispatch_mode()


def test_the_warning_of_vmaps_fallback_can_be_switched() -> None:
    def warned(enabled: bool) -> bool:
        set_vmap_fallback_warning(enabled)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            vmap(without_batching_rule)(torch.rand(2, 3, 4))
        return any("There is a performance drop because" in str(one.message) for one in caught)

    try:
        assert not warned(False)
        assert warned(True)
    finally:
        set_vmap_fallback_warning(True)


def without_batching_rule(x: Tensor) -> Tensor:
    """A function whose operator vmap computes row by row."""
    return torch.histc(x)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of torch, about its own deprecated parts
def test_a_graph_lists_the_operators_and_compiles_with_options() -> None:
    def function(x: Tensor) -> tuple[Tensor]:
        return (torch.relu(x) * 2,)

    x = torch.tensor([-1.0, 3.0])
    graph = operator_graph(function, [x])
    called = [str(node.target) for node in graph.graph.nodes if node.op == "call_function"]
    assert called == ["aten.relu.default", "aten.mul.Tensor"]
    shapes = FakeTensorMode(static_shapes=True, allow_non_fake_inputs=True)
    like = [shapes.from_tensor(x)]
    assert like[0].shape == x.shape
    with (
        tracing(TracingContext(shapes)),
        compiler_options(deterministic=True, emulate_precision_casts=True, layout_optimization=False),
    ):
        program = compile_graph(graph, like)
    (found,) = program(x)
    assert found.tolist() == [0, 6]


def test_the_settings_of_the_tracer_exist() -> None:
    config = dynamo_config()
    assert config.recompile_limit > 0
    assert isinstance(config.fail_on_recompile_limit_hit, bool)
    assert isinstance(config.allow_rnn, bool)


def test_random_functions_may_be_replaced_under_the_tracer() -> None:
    from torch._dynamo.variables.torch import get_overridable_functions

    trace_random_functions()
    assert {torch.rand_like, torch.randn_like, torch.normal} <= get_overridable_functions()


def test_trees_of_tensors_are_taken_apart_and_put_together() -> None:
    tree = {"b": (torch.tensor(1.0), 2), "a": [torch.tensor(3.0)]}
    leaves, form = tree_flatten(tree)
    assert [float(v) for v in leaves] == [1, 2, 3]
    assert tree_unflatten(leaves, form) == tree
    assert tree_leaves(tree) == leaves
    twice: Callable[[Tensor], Tensor] = lambda v: 2 * v  # noqa: E731
    assert tree_map_only(Tensor, twice, tree) == {"b": (2, 2), "a": [6]}


def test_device_types_have_names() -> None:
    assert (DeviceType.CUDA.name, DeviceType.CPU.name) == ("CUDA", "CPU")
