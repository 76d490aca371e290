"""Traced programs and the batch tables of captured steps, without a GPU."""

import warnings
from functools import partial

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch._dynamo.utils import counters

from kedge.algorithms import fedavg, fedbug, feddyn
from kedge.core.algorithm import Algorithm, LocalTraining, Stage
from kedge.core.frozen import place_frozen
from kedge.core.model import Batch
from kedge.core.optimizers import SGD
from kedge.core.schedules import all_units
from kedge.core.server import broadcast, initial_server
from kedge.core.tree import Leaves, flatten, tree_map, tree_to
from kedge.data.augment import Augment
from kedge.data.batches import PlanSettings, RoundNumbers, plan
from kedge.data.datasets import synthetic
from kedge.data.federation import federate
from kedge.engines.cuda.captured import step_from_table
from kedge.engines.cuda.frozen_inputs import make_frozen_inputs
from kedge.engines.cuda.graphs import static_copies
from kedge.engines.cuda.lanes import Lanes
from kedge.engines.cuda.rounding import inputs
from kedge.engines.cuda.tracing import hide_compiler_advice, trace_operators, trace_program
from kedge.engines.engine import Order
from kedge.engines.leaves import trainable
from kedge.engines.stack.programs import StepProgram, cpu_keeps_rounding
from kedge.engines.stack.stacked import Stacked
from kedge.models import MODELS
from kedge.nn.from_module import from_module, seeded
from kedge.nn.precision import in_precision


@pytest.mark.parametrize(
    ("algorithm", "network"),
    # torch 2.13 fails to compile frozen convolutions for a CPU (a KeyError where it fuses outer loops), torch
    # before it others, too. Such programs run on GPUs.
    [
        pytest.param(
            feddyn(0.1),
            "small-cnn",
            id="feddyn",
            marks=[
                pytest.mark.skipif(torch.__version__ < "2.13", reason="this torch cannot compile it"),
                pytest.mark.thorough,
            ],
        ),
        pytest.param(fedbug(fedavg()), "mlp", id="fedbug"),
    ],
)
def test_a_traced_step_from_the_table_is_a_step_of_the_stack(algorithm: Algorithm, network: str) -> None:
    source = synthetic(60, 4, (1, 8, 8))
    data = federate(source, np.array_split(np.arange(len(source.train)), 3)).to("cpu", torch.float64)
    model = from_module(seeded(lambda: MODELS[network]((1, 8, 8), 4), 0))
    stage = Stage(algorithm, 1, LocalTraining(1, 8, SGD(0.1, momentum=0.9, weight_decay=1e-3), clip=1.0))
    params, buffers = (tree_to(v, torch.float64) for v in model.init(0))
    server = initial_server(algorithm, model, params, buffers)
    engine = Stacked(model, data)
    engine.begin(stage, params)
    order = Order(0, 0, 0, server.shared, server.buffers, broadcast(algorithm, server))
    start = engine.start(stage, model, engine.rows(order, [0, 1, 2]))
    carry = static_copies(start.carry)
    statistics = tree_map(torch.clone, carry["buffers"])
    rest = start.inputs()._replace(statistics=statistics)._asdict()
    table = torch.from_numpy(start.plan.table)
    now = torch.zeros_like(table[0])
    programs = {}
    for number, mask in enumerate(start.plan.masks):
        if mask not in programs:
            leaves = trainable(model, mask)
            program = StepProgram(algorithm, model, stage.local, data, leaves, True, False)
            function = partial(step_from_table, program)
            programs[mask] = trace_program(function, carry, rest, now, data.pool.x, data.pool.y)
        now.copy_(table[number])
        programs[mask](carry, rest, now, data.pool.x, data.pool.y)
    right = flatten(engine.run_steps(start))
    assert set(right) == set(flatten(carry))
    for name, value in flatten(carry).items():
        torch.testing.assert_close(value, right[name], rtol=0, atol=1e-13)


def test_frozen_parameters_are_inputs_of_a_program_rounded_once() -> None:
    """A backbone of the same shapes is the same program; no step rounds its weight to bfloat16."""
    net = nn.Sequential(nn.Linear(5, 4), nn.Tanh(), nn.Linear(4, 3))
    net[0].requires_grad_(False)
    model = in_precision(place_frozen(from_module(net), torch.float32), "bf16")
    x, weight = torch.randn(2, 6, 5), torch.ones(6)
    params = tree_map(lambda v: v.expand(2, *v.shape).contiguous(), model.init(0)[0])

    def moved(own: Leaves, x: Tensor) -> Leaves:
        def step_row(own: Leaves, x: Tensor) -> Leaves:
            def loss(now: Leaves) -> Tensor:
                batch = Batch(x, torch.zeros(6), weight, torch.zeros(2))
                return model.apply(now, {}, batch, True)[0].logits.square().sum()

            slope = torch.func.grad(loss)(own)
            return {k: v - 0.1 * slope[k] for k, v in own.items()}

        return torch.func.vmap(step_row)(own, x)

    graph = trace_operators(moved, params, x)
    before = len(inputs(graph))
    values = make_frozen_inputs(graph)
    assert {v.dtype for v in values} == {torch.bfloat16}
    assert sorted(v.numel() for v in values) == [4, 20]
    assert len(inputs(graph)) == before + len(values)
    assert not list(graph.graph.find_nodes(op="get_attr"))
    want, held = moved(params, x), tree_map(torch.clone, params)
    trace_program(moved, held, x)(held, x)
    for k, v in held.items():
        torch.testing.assert_close(v, want[k], rtol=1e-2, atol=1e-2)


def test_what_is_handed_through_is_not_copied() -> None:
    held: dict[str, Tensor] = {"moves": torch.zeros(3), "rests": torch.ones(3)}
    run = trace_program(lambda own: {"moves": own["moves"] + own["rests"], "rests": own["rests"]}, held)
    run(held)
    run(held)
    assert held["moves"].tolist() == [2, 2, 2]
    assert held["rests"].tolist() == [1, 1, 1]
    other = {"moves": torch.full((3,), 5.0), "rests": torch.full((3,), 2.0)}
    run(other)  # a program serves all tensors of the same shapes
    assert other["moves"].tolist() == [7, 7, 7]
    assert held["moves"].tolist() == [2, 2, 2]


def test_advice_of_the_compiler_is_not_shown(recwarn: pytest.WarningsRecorder) -> None:
    """The wording is that of torch 2.11 on a GPU."""
    warnings.simplefilter("always")
    hide_compiler_advice()
    warnings.warn(
        "\n            Online softmax is disabled on the fly since Inductor decides to", stacklevel=1
    )
    warnings.warn("TensorFloat32 tensor cores for float32 matrix multiplication available", stacklevel=1)
    warnings.warn("`torch.jit.script_method` is deprecated.", DeprecationWarning, stacklevel=1)
    warnings.warn("Something else", stacklevel=1)
    assert [str(one.message) for one in recwarn] == ["Something else"]


def test_programs_are_kept_on_disk() -> None:
    def function(held: Tensor, by: Tensor) -> Tensor:
        return held * by.sin()

    def cache_hits() -> int:
        return int(counters["inductor"]["fxgraph_cache_hit"])

    sizes = torch.zeros(3, 5), torch.ones(5)
    trace_program(lambda own, by: {"a": function(own["a"], by)}, {"a": sizes[0]}, sizes[1])
    before = cache_hits()
    trace_program(lambda own, by: {"a": function(own["a"], by)}, {"a": sizes[0]}, sizes[1])
    assert cache_hits() == before + 1


@pytest.mark.parametrize("augment", ["none", "flip-crop"])
def test_the_table_holds_the_plan(augment: Augment) -> None:
    members = [np.arange(20), np.arange(20, 27)]
    own = plan(
        members,
        [0, 1],
        PlanSettings(LocalTraining(1, 4), all_units, 2, True, augment=augment),
        RoundNumbers(),
    )
    table = own.table
    assert table.shape[:2] == own.alive.shape
    assert table.shape[2] % 2 == 0
    parts = np.split(table, [4, 8, 9, 11, 11 + own.moves[0, 0].size], axis=2)
    assert (parts[0] == own.index).all()
    assert (parts[1] == own.weight).all()
    assert (parts[2][..., 0] == own.alive).all()
    assert (parts[3] == own.key).all()
    assert (parts[4].reshape(own.moves.shape) == own.moves).all()


def test_runs_of_equal_steps_take_the_longer_graph_after_single_steps() -> None:
    replayed: list[tuple[str, int]] = []

    class Graph:
        def __init__(self, key: tuple[str, int]) -> None:
            self.key = key

        def replay(self) -> None:
            replayed.append(self.key)

    lanes = Lanes.__new__(Lanes)
    lanes.graphs = {(mask, n): Graph((mask, n)) for mask in "ab" for n in (1, 8)}  # type: ignore[misc]
    lanes.replay(["a"] * 3 + ["b"] * 18 + ["a"])
    assert replayed == [("a", 1)] * 3 + [("b", 1)] * 2 + [("b", 8)] * 2 + [("a", 1)]
    assert sum(n for _, n in replayed) == 22


@pytest.mark.parametrize(
    "dtype",
    [
        pytest.param(
            torch.bfloat16,
            marks=pytest.mark.skipif(not cpu_keeps_rounding(), reason="this torch does not round"),
        ),
        torch.float32,
    ],
)
def test_the_gradient_of_a_maximum_is_compiled_right(dtype: torch.dtype) -> None:
    """It compares values with their maximum, which must be rounded alike."""

    def gradient(x: Tensor) -> Tensor:
        def largest(v: Tensor) -> Tensor:
            return (torch.sigmoid(v.to(dtype) * 1.37) + 0.123).amax(1).float().sum()

        found: Tensor = torch.func.grad(largest)(x)
        return found

    x = torch.linspace(-3, 3, 60).view(4, 15)
    found = torch.zeros_like(x)
    trace_program(lambda _, v: gradient(v), found, x)(found, x)
    torch.testing.assert_close(found, gradient(x), rtol=2e-2, atol=0)
    assert (found != 0).sum() >= 4
