"""Forward passes that cannot be trained are refused before training, with the module's name and a remedy."""

import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

import kedge
from kedge.config.forward_check import with_checked_forward
from kedge.data.federation import federation_from_datasets
from kedge.models import MODELS
from kedge.nn.from_module import from_module, seeded


def dataset(seed: int) -> kedge.Dataset:
    draw = np.random.default_rng(seed)
    return kedge.Dataset(draw.standard_normal((6, 5, 8)), draw.integers(0, 3, 6))


CLIENTS = [dataset(seed) for seed in range(2)]


class Inner(nn.Module):
    """A function of the user's own, with weights before it."""

    def __init__(self, function: Callable[[Any, Tensor], Tensor]) -> None:
        super().__init__()
        self.function, self.linear, self.calls = function, nn.Linear(8, 8), 0
        self.register_buffer("seen", torch.zeros(8))

    def forward(self, x: Tensor) -> Tensor:
        return self.function(self, self.linear(x))


class Net(nn.Module):
    """The function deep inside."""

    def __init__(self, core: nn.Module) -> None:
        super().__init__()
        self.blocks = nn.Sequential(nn.Identity(), core)
        self.last = nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.last(self.blocks(x).mean(1))
        return logits


class Embedded(nn.Module):
    """Words, made of numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(10, 8, max_norm=0.1)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.words((3 * x[..., 0].abs()).long().clamp(0, 9))
        return out


class Packed(nn.Module):
    """A recurrent layer over a packed sequence."""

    def __init__(self) -> None:
        super().__init__()
        self.rnn = nn.GRU(8, 8, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        packed = nn.utils.rnn.pack_padded_sequence(x, torch.full((len(x),), 5), batch_first=True)
        out: Tensor = self.rnn(packed)[1][0]
        return out


def counted(own: Any, x: Tensor) -> Tensor:
    own.calls += 1
    times: int = own.calls
    return x * times


def moved(own: Any, x: Tensor) -> Tensor:
    own.seen.add_(x.detach().mean((0, 1)))
    return x


def generated(own: Any, x: Tensor) -> Tensor:
    own.generator = getattr(own, "generator", None) or torch.Generator()
    return x + torch.randn(8, generator=own.generator) + F.dropout(x, 0.1)


INNER = r"blocks\.1 \(Inner\)"
REFUSED: dict[str, tuple[Callable[[], nn.Module], str]] = {
    "torch": (
        lambda: Inner(lambda _, x: x[:, torch.randperm(5)]),
        INNER + r": its forward draws from torch's global generator \(torch\.randperm\).* Use nn\.Dropout",
    ),
    "alpha dropout": (lambda: Inner(lambda own, x: F.alpha_dropout(x, 0.1, own.training)), INNER + ".*alpha"),
    "numpy": (lambda: Inner(lambda _, x: x * np.random.rand()), INNER + ".*numpy's global generator"),
    "Python": (lambda: Inner(lambda _, x: x * random.random()), INNER + ".*Python's global generator"),
    "evaluation only": (
        lambda: Inner(lambda own, x: x if own.training else x * np.random.rand()),
        INNER + ".*numpy's global generator",
    ),
    "permuted in evaluation": (
        lambda: Inner(lambda own, x: x if own.training else x[:, torch.randperm(5)]),
        INNER + r".*torch's global generator \(torch\.randperm\)",
    ),
    "a branch that is drawn": (
        lambda: Inner(lambda _, x: x[:, torch.randperm(5)] if torch.rand(1).item() < 0.5 else x),
        INNER + r".*torch's global generator \(torch\.randperm\)",
    ),
    "larger batches": (
        lambda: Inner(lambda _, x: x[:, torch.randperm(5)] if len(x) > 2 else x),
        INNER + r".*torch's global generator \(torch\.randperm\)",
    ),
    "generator": (lambda: Inner(generated), INNER + r": a torch\.Generator in a forward pass is not saved"),
    "count": (lambda: Inner(counted), INNER + ": its forward returns another result for the same input"),
    "buffer": (lambda: Inner(moved), INNER + r": .*'blocks\.1\.seen' in place.*self\.seen = \.\.\."),
    "error": (
        lambda: Inner(lambda own, x: own.nothing(x)),
        INNER + ": AttributeError: 'Inner' object has no",
    ),
    "training only": (
        lambda: Inner(lambda own, x: x[:, :, :3] if own.training else x),
        "the module cannot train: last .Linear.: mat1 and mat2",
    ),
    "max_norm": (Embedded, r"blocks\.1\.words \(Embedding\): .* leave max_norm out"),
    "spectral_norm": (
        lambda: nn.utils.parametrizations.spectral_norm(nn.Linear(8, 8)),
        r"blocks\.1 \(ParametrizedLinear\): .*spectral_norm does that",
    ),
    "old spectral_norm": (
        lambda: nn.utils.spectral_norm(nn.Linear(8, 8)),
        r"blocks\.1 \(Linear\): .*spectral_norm does that",
    ),
    "old weight_norm": (
        lambda: nn.utils.weight_norm(nn.Linear(8, 8)),
        r"blocks\.1 \(Linear\): nn\.utils\.weight_norm .*parametrizations\.weight_norm",
    ),
    "checkpointed": (
        lambda: Inner(lambda own, x: checkpoint(own.linear, x, use_reentrant=False)),
        INNER + r": it uses torch\.utils\.checkpoint",
    ),
    "packed": (Packed, r"blocks\.1\.rnn \(GRU\): a PackedSequence is not supported.*Pad the sequences"),
    "synchronized": (lambda: nn.SyncBatchNorm(5), r"blocks\.1: SyncBatchNorm is not supported"),
}


@pytest.mark.filterwarnings("ignore:.*weight_norm.*is deprecated:FutureWarning")
@pytest.mark.parametrize("name", REFUSED)
@pytest.mark.parametrize("engine", ["sequential", "auto"])
def test_what_a_forward_pass_must_not_do_is_refused_by_name(name: str, engine: Any) -> None:
    build, message = REFUSED[name]
    with pytest.raises(kedge.RequestError, match=message):
        kedge.train(Net(build()), CLIENTS, rounds=1, engine=engine, progress=False)


def test_the_check_leaves_module_and_generators_as_they_were() -> None:
    module = Net(Inner(lambda own, x: F.dropout(x, 0.5, own.training)))
    weights = {k: v.clone() for k, v in module.state_dict().items()}
    states = torch.random.get_rng_state(), str(np.random.get_state(legacy=False)), random.getstate()
    kedge.train(module, CLIENTS, rounds=1, progress=False)
    assert torch.equal(states[0], torch.random.get_rng_state())
    assert states[1:] == (str(np.random.get_state(legacy=False)), random.getstate())
    assert all(torch.equal(v, weights[k]) for k, v in module.state_dict().items())


def test_a_parametrized_weight_trains_and_comes_back() -> None:
    module = Net(nn.utils.parametrizations.weight_norm(nn.Linear(8, 8)))
    result = kedge.train(module, CLIENTS, rounds=1, engine="sequential", progress=False)
    assert "blocks.1.parametrizations.weight.original1" in result.model


def test_compiling_time_steps_is_counted() -> None:
    """A time step is written out in a compiled program, and makes it longer to compile."""

    class Reading(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.rnn, self.last = nn.LSTM(8, 8, 2, batch_first=True, bidirectional=True), nn.Linear(16, 3)

        def forward(self, x: Tensor) -> Tensor:
            logits: Tensor = self.last(self.rnn(x)[0][:, -1])
            return logits

    assert (
        with_checked_forward(from_module(Reading()), federation_from_datasets(CLIENTS, None)).unrolled
        == 5 * 2 * 2
    )
    assert (
        with_checked_forward(
            from_module(Net(nn.Linear(8, 8))), federation_from_datasets(CLIENTS, None)
        ).unrolled
        == 0
    )


def test_a_module_that_mixes_samples_does_not_train_on_padded_batches() -> None:
    """A stack pads the last batch from 2 to 4 samples, and mixup would mix them with the padding."""
    mixing = Net(Inner(lambda _, x: 0.7 * x + 0.3 * x.roll(1, 0)))
    with pytest.raises(kedge.RequestError, match=r"output from other samples .*'sequential'"):
        kedge.train(mixing, CLIENTS, rounds=1, batch=4, engine="stacked", compile="off", progress=False)
    result = kedge.train(mixing, CLIENTS, rounds=1, batch=4, compile="off", progress=False)
    assert result.engine["name"] == "sequential"
    kedge.train(mixing, CLIENTS, rounds=1, batch=3, engine="stacked", compile="off", progress=False)
    for plain in (nn.BatchNorm1d(5), nn.Dropout(0.5), nn.LayerNorm(8)):
        kedge.train(Net(plain), CLIENTS, rounds=1, batch=4, engine="stacked", compile="off", progress=False)


def test_rounding_that_batch_norm_enlarges_is_no_mixing() -> None:
    """In single precision two samples alone and in a batch of eight differ by 1e-4 of the largest logit."""
    model = from_module(seeded(lambda: MODELS["alexnet-bn"]((1, 64, 64), 3, hidden=64), 2))
    draw = np.random.default_rng(2)
    images = kedge.Dataset(draw.standard_normal((6, 1, 64, 64)).astype(np.float32), draw.integers(0, 3, 6))
    assert not with_checked_forward(model, federation_from_datasets([images], None)).mixes_samples
