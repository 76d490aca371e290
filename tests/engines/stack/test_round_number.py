"""Hooks read the number of the round as a tensor: every engine trains as a plain loop that counts itself."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

import pytest
import torch
from tests.contract.problem import federation, perceptron
from tests.engines.recorded import on_the_cpu
from torch import Tensor
from torch.func import functional_call
from torch.nn import functional as F

from kedge.core.algorithm import Algorithm, LocalTraining, Stage
from kedge.core.correction import Correction, Step
from kedge.core.model import Model
from kedge.core.optimizers import SGD
from kedge.core.tree import Leaves, add, sqnorm, sub
from kedge.data.federation import Federation
from kedge.engines.cuda.captured import captured_stack
from kedge.engines.engine import Assignment, Engine, Order, Rounds, drive
from kedge.engines.pack.pack import Pack
from kedge.engines.sequential import Sequential
from kedge.engines.stack.direct import Direct
from kedge.engines.stack.stacked import Stacked

ROUNDS, LR, STEPS = 4, 0.1, 2
LOCAL = LocalTraining(STEPS, 100, SGD(LR))  # batches are all of a client's samples


@dataclass(frozen=True)
class Fading(Correction):
    """½ ‖w − wᵗ‖² / (1 + t) in the loss, and (1 + t) w / 100 in the gradient."""

    name = "fading"

    def loss(self, step: Step) -> Tensor:
        return sqnorm(sub(step.params, step.anchor)) / (2 * (1 + step.round))

    def gradient(self, grads: Leaves, step: Step) -> Leaves:
        return {k: g + (1 + step.round) * step.params[k] / 100 for k, g in grads.items()}


FADING = Algorithm("fading", corrections=(Fading(),))
STAGE = Stage(FADING, ROUNDS, LOCAL)
Kind = Callable[[Model, Federation], Engine]
KINDS: dict[str, Kind] = {
    "sequential": Sequential,
    "stacked": Stacked,
    "stacked in chunks": partial(Stacked, chunk=2),
    "captured": captured_stack,
    "captured, two streams": partial(captured_stack, streams=2),
}


def rounds(model: Model, data: Federation, start: int) -> Rounds[Leaves]:
    """Rounds in which all clients train, numbered from `start`; their mean weights samples equally."""
    shared, buffers = model.init(0)
    shared = {k: v.double() for k, v in shared.items()}
    for number in range(start, start + ROUNDS):
        order = Order(number, number - start, 0, shared, buffers, {"fading": {}})
        reply = yield Assignment(order, range(len(data.clients)))
        shared = add(shared, reply.mean["delta"])
    return shared


def plain_loop(model: Model, data: Federation, start: int) -> Leaves:
    """The same by autograd, with a loop over rounds, clients and steps."""
    network = torch.nn.Sequential(
        torch.nn.Flatten(), torch.nn.Linear(16, 6), torch.nn.Tanh(), torch.nn.Linear(6, 5), torch.nn.Tanh(),
        torch.nn.Linear(5, 3),
    )  # fmt: skip
    shared = {k: v.double() for k, v in model.init(0)[0].items()}
    samples = sum(len(own) for own in data.clients)
    for number in range(start, start + ROUNDS):
        mean = {k: torch.zeros_like(v) for k, v in shared.items()}
        for own in data.clients:
            x, y = data.pool.x[torch.from_numpy(own)], data.pool.y[torch.from_numpy(own)]
            params = shared
            for _ in range(STEPS):
                params = {k: v.detach().requires_grad_() for k, v in params.items()}
                away = torch.cat([(v - shared[k]).flatten() for k, v in params.items()])
                loss = F.cross_entropy(functional_call(network, params, (data.prepare(x),)), y)
                loss = loss + away.square().sum() / 2 / (1 + number)
                grads = torch.autograd.grad(loss, list(params.values()))
                params = {
                    k: v.detach() - LR * (g + (1 + number) / 100 * v.detach())
                    for (k, v), g in zip(params.items(), grads, strict=True)
                }
            mean = {k: m + len(own) / samples * params[k] for k, m in mean.items()}
        shared = mean
    return shared


@pytest.fixture
def emulated_cuda() -> Iterator[None]:
    """The captured engine works on the CPU."""
    with on_the_cpu():
        yield


def error(left: Leaves, right: Leaves) -> float:
    """The largest difference, relative to the largest parameter."""
    assert left.keys() == right.keys()
    largest = max(float(v.abs().max()) for v in right.values())
    return max(float((v - left[k]).abs().max()) for k, v in right.items()) / largest


@pytest.mark.usefixtures("emulated_cuda")
@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
def test_every_engine_counts_as_the_plain_loop_does(kind: Kind) -> None:
    model, data = perceptron(of=FADING), federation()
    engine = kind(model, data)
    engine.begin(STAGE, model.init(0)[0], frozenset())
    assert error(drive(rounds(model, data, 3), engine), plain_loop(model, data, 3)) < 1e-12
    assert error(plain_loop(model, data, 4), plain_loop(model, data, 3)) > 1e-4


@pytest.mark.parametrize("kind", [Stacked, captured_stack])
def test_runs_of_a_pack_have_rounds_of_their_own(kind: Callable[[Model, Federation], Stacked]) -> None:
    """Three runs, one of which has trained before, as one stack."""
    with on_the_cpu():
        model, data = perceptron(of=FADING), federation()
        engines = [kind(model, data) for _ in range(3)]
        for engine in engines:
            engine.begin(STAGE, model.init(0)[0], frozenset())
        pack = Pack(engines, kind)
        starts, ended = (0, 0, 7), dict[int, Leaves | BaseException]()
        pack.train_runs([rounds(model, data, start) for start in starts], ended.__setitem__)
    assert pack.stacks, "nothing was trained side by side"
    for number, start in enumerate(starts):
        end = ended[number]
        assert not isinstance(end, BaseException)
        assert error(end, plain_loop(model, data, start)) < 1e-12


@pytest.mark.slow
def test_one_compiled_program_serves_all_rounds() -> None:
    model, data = perceptron(of=FADING), federation()
    engine = Stacked(model, data, 0, Direct(compile=True))
    engine.begin(STAGE, model.init(0)[0], frozenset())
    assert error(drive(rounds(model, data, 0), engine), plain_loop(model, data, 0)) < 1e-12
    with torch.compiler.set_stance("fail_on_recompile"):
        assert error(drive(rounds(model, data, 5), engine), plain_loop(model, data, 5)) < 1e-12
