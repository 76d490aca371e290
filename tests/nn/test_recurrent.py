"""Recurrent layers in plain products: torch's outputs, states and gradients; keyed dropout between layers."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from tests.nn.test_layers import batch, random_tensor
from torch import Tensor, nn
from torch.func import vmap

from kedge.core.errors import RequestError
from kedge.measure.cost.macs import count_macs
from kedge.nn import recurrent
from kedge.nn.from_module import from_module
from kedge.nn.replacement import KEYED, replace_layers

KINDS: dict[str, Callable[..., nn.RNNBase]] = {
    "lstm": nn.LSTM,
    "gru": nn.GRU,
    "rnn": nn.RNN,
    "rnn relu": lambda *sizes, **options: nn.RNN(*sizes, nonlinearity="relu", **options),
}
OPTIONS: dict[str, dict[str, Any]] = {
    "plain": {},
    "two layers, batch first": {"num_layers": 2, "batch_first": True},
    "both directions": {"num_layers": 2, "bidirectional": True},
    "no bias": {"bias": False},
}
VARIANTS = [(kind, name) for kind in KINDS for name in OPTIONS] + [("lstm", "projected")]
OPTIONS["projected"] = {"num_layers": 2, "bidirectional": True, "proj_size": 3}
TIMES, SAMPLES, INPUTS, HIDDEN = 6, 4, 3, 5


@pytest.fixture
def always_plain(monkeypatch: pytest.MonkeyPatch) -> None:
    """Plain products also on a CPU, as on a GPU or in a compiled program."""
    monkeypatch.setattr(recurrent, "uses_torch_operator", lambda layer, x: False)


def layers(kind: str, options: str) -> tuple[nn.RNNBase, nn.RNNBase]:
    """torch's layer, and a plain one with the same weights."""
    own = KINDS[kind](INPUTS, HIDDEN, **OPTIONS[options]).double()
    plain = KINDS[kind](INPUTS, HIDDEN, **OPTIONS[options]).double()
    plain.load_state_dict(own.state_dict())
    replace_layers(nn.Sequential(plain), False)
    assert type(plain) is KEYED[type(own)]
    return own, plain


def states(layer: nn.RNNBase, batched: bool) -> Any:
    """Initial states that are not zero."""
    rows = layer.num_layers * (2 if layer.bidirectional else 1)
    shape = (rows, SAMPLES) if batched else (rows,)
    h = random_tensor(*shape, layer.proj_size or HIDDEN, seed=5)
    return (h, random_tensor(*shape, HIDDEN, seed=6)) if isinstance(layer, nn.LSTM) else h


@pytest.mark.usefixtures("always_plain")
@pytest.mark.parametrize(("kind", "options"), VARIANTS)
@pytest.mark.parametrize("given", [False, True], ids=["zeros", "states given"])
@pytest.mark.parametrize("batched", [True, False], ids=["batched", "one sequence"])
def test_plain_products_are_torchs_layer(kind: str, options: str, given: bool, batched: bool) -> None:
    own, plain = layers(kind, options)
    shape = (SAMPLES, TIMES) if own.batch_first else (TIMES, SAMPLES)
    x = random_tensor(*(shape if batched else (TIMES,)), INPUTS)
    first = (states(own, batched),) if given else ()
    results = []
    for layer in (own, plain):
        out, after = layer(x, *first)
        tensors = (out, *(after if isinstance(after, tuple) else (after,)))
        total = sum(((v * random_tensor(*v.shape, seed=9)).sum() for v in tensors), torch.zeros(()))
        gradients = torch.autograd.grad(total, list(layer.parameters()))
        results.append([*tensors, *gradients])
    for left, right in zip(*results, strict=True):
        torch.testing.assert_close(left, right, rtol=1e-12, atol=1e-13)


@pytest.mark.usefixtures("always_plain")
@pytest.mark.parametrize("kind", [nn.LSTMCell, nn.GRUCell, nn.RNNCell])
@pytest.mark.parametrize("given", [False, True], ids=["zeros", "state given"])
def test_plain_cells_are_torchs(kind: Any, given: bool) -> None:
    own, plain = kind(INPUTS, HIDDEN).double(), kind(INPUTS, HIDDEN).double()
    plain.load_state_dict(own.state_dict())
    replace_layers(nn.Sequential(plain), False)
    h = random_tensor(SAMPLES, HIDDEN, seed=5)
    first = ((h, random_tensor(SAMPLES, HIDDEN, seed=6)) if kind is nn.LSTMCell else h,) if given else ()
    x = random_tensor(SAMPLES, INPUTS)
    for left, right in zip(own(x, *first), plain(x, *first), strict=True):
        torch.testing.assert_close(left, right, rtol=1e-12, atol=1e-13)


class Reading(nn.Module):
    """A recurrent layer over sequences, and a classifier on its last output."""

    def __init__(self, core: nn.Module, width: int = HIDDEN) -> None:
        super().__init__()
        self.core, self.last = core, nn.Linear(width, 3)

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.last(self.core(x)[0][:, -1])
        return logits


def reading(dropout: float = 0.0) -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return Reading(nn.LSTM(INPUTS, HIDDEN, 2, batch_first=True, dropout=dropout)).double()


def outputs(module: nn.Module, x: Tensor, train: bool = True, key: tuple[int, int] = (1, 2)) -> Tensor:
    model = from_module(module)
    params, buffers = model.init(0)
    return model.apply(params, buffers, batch(x, key=key), train)[0].logits.detach()


def test_dropout_between_layers_depends_on_the_key_alone() -> None:
    x = random_tensor(8, TIMES, INPUTS)
    first = outputs(reading(0.5), x)
    torch.manual_seed(7)
    assert torch.equal(first, outputs(reading(0.5), x))
    assert not torch.equal(first, outputs(reading(0.5), x, key=(1, 3)))
    torch.testing.assert_close(first[:5], outputs(reading(0.5), x[:5]), rtol=1e-12, atol=1e-13)
    assert not torch.allclose(first, outputs(reading(0.0), x))


def test_dropout_between_layers_rests_in_evaluation() -> None:
    x = random_tensor(8, TIMES, INPUTS)
    torch.testing.assert_close(outputs(reading(0.5), x, train=False), reading()(x), rtol=1e-12, atol=1e-13)


def test_dropout_between_layers_drops_its_share() -> None:
    """A second layer that repeats the first one's output shows what was dropped: relu(I·h), h = 1."""
    layer = nn.RNN(1, 100, 2, nonlinearity="relu", batch_first=True, dropout=0.3, bias=False).double()
    for name, value in layer.named_parameters():
        fills = {"weight_ih_l0": torch.ones(100, 1), "weight_ih_l1": torch.eye(100)}
        value.data = fills.get(name, torch.zeros(100, 100)).double()

    class Whole(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.core = layer

        def forward(self, x: Tensor) -> Tensor:
            out: Tensor = self.core(x)[0]
            return out.flatten(1)

    out = outputs(Whole(), torch.ones(20, 10, 1, dtype=torch.float64))
    assert abs(float((out == 0).double().mean()) - 0.3) < 5 * 0.0033  # √(0.21 / 20 000)
    assert set(out.flatten().tolist()) == {0.0, 1 / 0.7}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=["float32", "float64"])
@pytest.mark.parametrize("kind", ["lstm", "gru", "rnn"])
def test_a_stack_is_evaluated_without_gradients(kind: str, dtype: torch.dtype) -> None:
    """vmap does not support torch's operator then."""
    module = Reading(KINDS[kind](INPUTS, HIDDEN, batch_first=True)).to(dtype)
    model, x = from_module(module), random_tensor(4, TIMES, INPUTS).to(dtype)
    rows = {k: torch.stack([v, 2 * v]) for k, v in model.init(0)[0].items()}
    with torch.no_grad():
        out = vmap(lambda p: model.apply(p, {}, batch(x), False)[0].logits)(rows)
        torch.testing.assert_close(out[0], module(x))


@pytest.mark.usefixtures("always_plain")
def test_a_stack_of_plain_layers_computes_each_of_them() -> None:
    module = reading()
    model, x = from_module(module), random_tensor(4, TIMES, INPUTS)
    params, _ = model.init(0)
    rows = {k: torch.stack([v, 2 * v]) for k, v in params.items()}
    out = vmap(lambda p: model.apply(p, {}, batch(x), True)[0].logits)(rows)
    torch.testing.assert_close(out[0], module(x), rtol=1e-12, atol=1e-13)


def test_a_packed_sequence_is_refused_with_what_to_do() -> None:
    packed = nn.utils.rnn.pack_padded_sequence(random_tensor(5, 2, INPUTS), torch.tensor([5, 3]))
    _, plain = layers("lstm", "plain")
    with pytest.raises(RequestError, match=r"PackedSequence is not supported.*Pad the sequences"):
        plain(packed)


def test_a_state_of_another_shape_is_refused_as_torch_does() -> None:
    _, plain = layers("gru", "plain")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(recurrent, "uses_torch_operator", lambda layer, x: False)
        with pytest.raises(RuntimeError, match="Expected hidden size"):
            plain(random_tensor(TIMES, SAMPLES, INPUTS), random_tensor(1, SAMPLES + 1, HIDDEN))


@pytest.mark.parametrize(("kind", "gates"), [(nn.LSTM, 4), (nn.GRU, 3), (nn.RNN, 1)])
def test_the_multiply_adds_of_a_layer_are_counted(kind: Callable[..., nn.RNNBase], gates: int) -> None:
    """Every gate of every time step sees inputs and states. In float32 torch's LSTM is one operator."""
    layer = kind(INPUTS, HIDDEN)
    replace_layers(nn.Sequential(layer), False)
    with torch.no_grad():
        macs, _ = count_macs(lambda: layer(torch.zeros(TIMES, SAMPLES, INPUTS)))
    assert macs == TIMES * SAMPLES * gates * HIDDEN * (INPUTS + HIDDEN)
