"""Random numbers inside a user's module: equal on all engines, exact after resuming, from keys alone."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from tests.contract.problem import (
    ALL_CLIENTS,
    PLAIN,
    TOLERANCE,
    build_model,
    disagreement,
    distance,
    federation,
)
from tests.contract.resuming import LOCAL, PARTICIPATION, assert_resume_is_exact
from tests.quick import every
from torch import Tensor, nn
from torch.func import grad, vmap
from torch.nn import functional as F

from kedge.algorithms import fedavg
from kedge.audit.training import run_state, train_rounds
from kedge.config.forward_check import with_checked_forward
from kedge.config.task import Task
from kedge.core.algorithm import LocalTraining, Stage
from kedge.core.model import Batch, Model
from kedge.core.optimizers import SGD
from kedge.core.tree import tree_to
from kedge.data.federation import Federation
from kedge.engines.cuda.tracing import trace_operators
from kedge.engines.engine import Engine
from kedge.engines.sequential import Sequential
from kedge.engines.stack.stacked import Stacked
from kedge.nn.random_functions import with_keyed_functions

TIMES, WIDTH = 5, 4
KEEP = LocalTraining(2, 4, SGD(0.1), clip=1.0)


class Sequences(nn.Module):
    """A layer over sequences, between two linear layers."""

    def __init__(self, core: nn.Module, width: int = WIDTH) -> None:
        super().__init__()
        self.first, self.core, self.last = nn.Linear(WIDTH, WIDTH), core, nn.Linear(width, 3)

    def forward(self, x: Tensor) -> Tensor:
        out = self.core(self.first(x))
        logits: Tensor = self.last((out[0] if isinstance(out, tuple) else out).mean(1))
        return logits


class Drawing(nn.Module):
    """A module that calls a random function of the user."""

    def __init__(self, draw: Callable[[Tensor, bool], Tensor]) -> None:
        super().__init__()
        self.draw, self.scale = draw, nn.Parameter(torch.ones(()))

    def forward(self, x: Tensor) -> Tensor:
        return self.draw(self.scale * x, self.training)


class Attending(nn.Module):
    """Attention with weights."""

    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(WIDTH, 2, dropout=0.2, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.attention(x, x, x)[0]
        return out


def attended(x: Tensor, training: bool) -> Tensor:
    return F.scaled_dot_product_attention(x, x, x, dropout_p=0.2 if training else 0.0)


FUNCTIONS: dict[str, Callable[[Tensor, bool], Tensor]] = {
    "F.dropout": lambda x, train: F.dropout(x, 0.3, train),
    "F.dropout in place": lambda x, train: F.dropout(x * 1, 0.3, train, inplace=True),
    "F.dropout1d": lambda x, train: F.dropout1d(x, 0.3, train),
    "F.rrelu": lambda x, train: F.rrelu(x, training=train),
    "F.gumbel_softmax": lambda x, train: F.gumbel_softmax(x, hard=train),
    "attention": attended,
    "rand": lambda x, train: x + torch.rand(x.shape, dtype=x.dtype) if train else x,
    "randn of numbers": lambda x, train: x + torch.randn(len(x), 1, WIDTH, dtype=x.dtype) if train else x,
    "randn_like": lambda x, train: x + torch.randn_like(x) if train else x,
    "rand_like": lambda x, train: x + torch.rand_like(x) if train else x,
    "normal": lambda x, train: torch.normal(x, 0.1) if train else x,
    "a distribution": lambda x, train: torch.distributions.Normal(x, 0.1 + x * 0).rsample() if train else x,
    "empty": lambda x, train: x + torch.empty(len(x), 1, WIDTH, dtype=x.dtype).normal_() if train else x,
    "randint": lambda x, train: x + torch.randint(0, 5, x.shape) if train else x,
    "bernoulli": lambda x, train: x * torch.bernoulli(torch.full_like(x, 0.5)) if train else x,
    "in place": lambda x, train: x + torch.empty_like(x).uniform_(-1, 1).add(torch.empty_like(x).normal_()),
}
LAYERS: dict[str, Callable[[], nn.Module]] = {
    "encoder layer": lambda: nn.TransformerEncoderLayer(WIDTH, 2, 8, dropout=0.1, batch_first=True),
    "decoder layer": lambda: Decoding(),
    "attention": Attending,
    "lstm": lambda: nn.LSTM(WIDTH, WIDTH, 2, dropout=0.2, batch_first=True),
    "gru": lambda: nn.GRU(WIDTH, WIDTH, 2, dropout=0.2, batch_first=True),
    "rnn, batch second": lambda: Turned(nn.RNN(WIDTH, WIDTH, 2, dropout=0.2)),
    "encoder, batch second": lambda: Turned(nn.TransformerEncoderLayer(WIDTH, 2, 8, dropout=0.1)),
    "rrelu": nn.RReLU,
    **{name: lambda draw=draw: Drawing(draw) for name, draw in FUNCTIONS.items()},  # type: ignore[misc]
}


class Decoding(nn.Module):
    """A decoder that attends to its own input."""

    def __init__(self) -> None:
        super().__init__()
        layer = nn.TransformerDecoderLayer(WIDTH, 2, 8, dropout=0.1, batch_first=True)
        self.decoder = nn.TransformerDecoder(layer, 1)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.decoder(x, x)
        return out


class Turned(nn.Module):
    """A layer that takes the time steps first."""

    def __init__(self, core: nn.Module) -> None:
        super().__init__()
        self.core = core

    def forward(self, x: Tensor) -> Tensor:
        out = self.core(x.transpose(0, 1))
        turned: Tensor = (out[0] if isinstance(out, tuple) else out).transpose(0, 1)
        return turned


def data(sizes: tuple[int, ...] = (1, 2, 5, 9)) -> Federation:
    return federation(sizes, (TIMES, WIDTH))


def model(name: str) -> Model:
    return with_checked_forward(build_model(PLAIN, lambda: Sequences(LAYERS[name]()).double()), data())


@pytest.mark.parametrize("name", every(4, LAYERS))
def test_engines_drop_the_same_on_ragged_clients(name: str) -> None:
    """Short batches are padded in a stack, and every client has a key of its own."""
    assert disagreement(PLAIN, KEEP, model(name), data(), ALL_CLIENTS[:2], chunk=3) < TOLERANCE


@pytest.mark.parametrize("name", ["encoder layer", "lstm", "rrelu", "F.dropout", "randn_like"])
def test_the_generators_of_the_process_are_neither_used_nor_moved(name: str) -> None:
    ends = []
    for seed in (1, 2):
        torch.manual_seed(seed)
        before = torch.random.get_rng_state(), np.random.get_state(legacy=False)
        own = model(name)
        for engine in (Sequential(own, data()), Stacked(own, data())):
            server = train_rounds(PLAIN, KEEP, engine, own, data(), ALL_CLIENTS[:1])
            ends.append(run_state(server, engine))
        assert torch.equal(before[0], torch.random.get_rng_state())
        assert str(before[1]) == str(np.random.get_state(legacy=False))
    assert distance(ends[0], ends[2]) == distance(ends[1], ends[3]) == 0


@pytest.mark.parametrize("name", [name for name in LAYERS if name not in ("F.gumbel_softmax", "in place")])
def test_chance_matters_in_training_and_rests_in_evaluation(name: str) -> None:
    own = model(name)
    params, buffers = (tree_to(part, torch.float64) for part in own.init(0))
    x = data().prepare(data().pool.x[:4])
    weight, labels = torch.ones(4, dtype=x.dtype), torch.zeros(4, dtype=torch.int64)

    def logits(key: int, train: bool) -> Tensor:
        batch = Batch(x, labels, weight, torch.tensor([key, 0]))
        return own.apply(params, buffers, batch, train)[0].logits

    assert not torch.allclose(logits(1, True), logits(2, True))
    assert torch.equal(logits(1, False), logits(2, False))


@pytest.mark.parametrize("name", every(3, ["encoder layer", "lstm", "F.dropout"]))
@pytest.mark.parametrize("engine", [Sequential, Stacked])
def test_a_resumed_run_leaves_the_same_bytes(
    name: str, engine: Callable[[Model, Federation], Engine], tmp_path: Path
) -> None:
    task = Task((Stage(fedavg(), 4, LOCAL),), model(name), data(), PARTICIPATION)
    assert_resume_is_exact(task, engine, tmp_path, 2)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["encoder layer", "decoder layer", "lstm", "gru", "F.dropout", "randn_like"])
def test_a_step_can_be_written_down_operator_by_operator(name: str) -> None:
    """The captured engine does this on a GPU: it traces vmap and gradients with shapes alone."""
    own = model(name)
    params, buffers = (tree_to(part, torch.float64) for part in own.init(0))
    rows = {k: torch.stack([v, 2 * v]) for k, v in params.items()}
    x = data().prepare(data().pool.x[:4]).expand(2, -1, -1, -1).contiguous()
    keys = torch.arange(4).view(2, 2)

    def loss(params: dict[str, Tensor], x: Tensor, key: Tensor) -> Tensor:
        weight, labels = torch.ones(4, dtype=x.dtype), torch.zeros(4, dtype=torch.int64)
        return own.apply(params, buffers, Batch(x, labels, weight, key), True)[0].logits.square().sum()

    def step(rows: dict[str, Tensor], x: Tensor, keys: Tensor) -> dict[str, Tensor]:
        slopes = vmap(grad(loss))(rows, x, keys)
        return {k: v - 0.1 * slopes[k] for k, v in rows.items()}

    want = step(rows, x, keys)
    after = {k: v.clone() for k, v in rows.items()}
    trace_operators(step, rows, x, keys)(*after.values(), x, keys)
    for k, v in want.items():
        torch.testing.assert_close(after[k], v, rtol=1e-12, atol=1e-13)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.torch.jit:DeprecationWarning")  # torch's compiler warns of torch itself
def test_compiled_programs_drop_the_same() -> None:
    """Layers with keys, functions that a mode replaces, and a layer that the compiler hides from modes."""
    parts = LAYERS["encoder layer"](), LAYERS["F.dropout"](), LAYERS["randn_like"](), LAYERS["gru"]()
    own = with_checked_forward(build_model(PLAIN, lambda: Sequences(nn.Sequential(*parts)).double()), data())
    local = LocalTraining(1, 4, SGD(0.1), clip=1.0)
    assert disagreement(PLAIN, local, own, data(), [[0, 1, 2, 3]], compiled=True) < TOLERANCE


def test_functions_are_keyed_only_where_a_module_calls_them() -> None:
    plain = build_model(PLAIN, lambda: Sequences(nn.Tanh()).double())
    assert with_checked_forward(plain, data()) == plain
    assert with_checked_forward(build_model(PLAIN, lambda: Sequences(LAYERS["lstm"]())), data()).random
    assert with_keyed_functions(plain).random
