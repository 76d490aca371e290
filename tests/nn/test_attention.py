"""Attention: torch's results without dropout, and keyed dropout."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from tests.nn.test_layers import batch, random_tensor
from torch import Tensor, nn
from torch.func import vmap

from kedge.core.model import Model
from kedge.nn.attention import multi_head
from kedge.nn.from_module import from_module

EMBED, HEADS, LENGTH = 8, 2, 5
SQUARE = torch.triu(torch.ones(LENGTH, LENGTH), 1).bool()


class Attending(nn.Module):
    """Self-attention with a padding mask made from the input."""

    def __init__(self, need_weights: bool = True, mask: Tensor | None = None, **options: Any) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(EMBED, HEADS, batch_first=True, **options)
        self.last = nn.Linear(EMBED, 3)
        self.need_weights, self.mask = need_weights, mask

    def forward(self, x: Tensor) -> Tensor:
        out, weights = self.attention(x, x, x, need_weights=self.need_weights, attn_mask=self.mask)
        if weights is not None:
            out = weights[:, :, : x.shape[1]] @ out
        logits: Tensor = self.last(out.mean(1))
        return logits


class Translating(nn.Module):
    """An encoder and a decoder with causal masks."""

    def __init__(self, **options: Any) -> None:
        super().__init__()
        self.both = nn.Transformer(EMBED, HEADS, 1, 1, 16, batch_first=True, **{"dropout": 0.0, **options})
        self.last = nn.Linear(EMBED, 3)

    def forward(self, x: Tensor) -> Tensor:
        mask = nn.Transformer.generate_square_subsequent_mask(x.shape[1], x.device, x.dtype)
        logits: Tensor = self.last(self.both(x, x, tgt_mask=mask).mean(1))
        return logits


class Encoding(nn.Module):
    """An encoder, batch first or second, norm first or last."""

    def __init__(self, batch_first: bool = True, **options: Any) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(
            EMBED, HEADS, 16, batch_first=batch_first, **{"dropout": 0.0, **options}
        )
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.last = nn.Linear(EMBED, 3)
        self.batch_first = batch_first

    def forward(self, x: Tensor) -> Tensor:
        y = self.encoder(x if self.batch_first else x.transpose(0, 1))
        logits: Tensor = self.last(y.mean(1 if self.batch_first else 0))
        return logits


NETWORKS: dict[str, Callable[[], nn.Module]] = {
    "attention": Attending,
    "attention without weights": lambda: Attending(need_weights=False),
    "attention with a mask": lambda: Attending(mask=SQUARE),
    "attention with extra keys": lambda: Attending(add_bias_kv=True, add_zero_attn=True),
    "encoder": Encoding,
    "encoder, batch second": lambda: Encoding(batch_first=False),
    "encoder, norm first": lambda: Encoding(norm_first=True),
    "transformer": Translating,
}

OPTIONS: list[dict[str, Any]] = [
    {},
    {"kdim": 6, "vdim": 7},
    {"add_bias_kv": True, "add_zero_attn": True},
    {"bias": False},
]


def module_and_model(build: Callable[[], nn.Module]) -> tuple[nn.Module, Model]:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        module = build().double()
    return module, from_module(module)


@pytest.mark.parametrize("name", NETWORKS)
@pytest.mark.parametrize("train", [True, False], ids=["training", "evaluation"])
def test_without_dropout_outputs_are_torchs_alone_and_in_a_stack(name: str, train: bool) -> None:
    """In evaluation, too, where torch's layers would call a fused operator that vmap does not support."""
    module, model = module_and_model(NETWORKS[name])
    params, buffers = model.init(0)
    x = random_tensor(3, LENGTH, EMBED)
    want = module.train(train)(x)
    with torch.no_grad():
        out = model.apply(params, buffers, batch(x), train)[0].logits
        torch.testing.assert_close(out, want, rtol=1e-12, atol=1e-13)
        rows = {k: torch.stack([v, v]) for k, v in params.items()}
        stacked = vmap(lambda p: model.apply(p, buffers, batch(x), train)[0].logits)(rows)
    torch.testing.assert_close(stacked[1], want, rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize("masked", ["none", "bool", "float", "per head"])
@pytest.mark.parametrize("need_weights", [True, False])
@pytest.mark.parametrize("same", [True, False], ids=["self", "cross"])
@pytest.mark.parametrize("options", OPTIONS)
def test_plain_operators_compute_what_torchs_attention_does(
    masked: str, need_weights: bool, same: bool, options: dict[str, Any]
) -> None:
    own = nn.MultiheadAttention(EMBED, HEADS, **options).double()
    samples, sources = 3, LENGTH
    same = same and "kdim" not in options
    query = random_tensor(LENGTH, samples, EMBED)
    key = query if same else random_tensor(sources, samples, options.get("kdim", EMBED), seed=1)
    value = query if same else random_tensor(sources, samples, options.get("vdim", EMBED), seed=2)
    masks: dict[str, Tensor | None] = {
        "none": None,
        "bool": SQUARE,
        "float": random_tensor(LENGTH, sources, seed=3),
        "per head": random_tensor(samples * HEADS, LENGTH, sources, seed=3) > 1,
    }
    padding = torch.zeros(samples, sources, dtype=torch.bool)
    padding[0, -2:] = True
    how: dict[str, Any] = {"attn_mask": masks[masked], "need_weights": need_weights}
    if masked != "float":
        how["key_padding_mask"] = padding
    want, weights = own(query, key, value, **how)
    separate: dict[str, Any] = {}
    if not own._qkv_same_embed_dim:
        names = ("q_proj_weight", "k_proj_weight", "v_proj_weight")
        separate = {"use_separate_proj_weight": True, **{k: getattr(own, k) for k in names}}
    out, seen = multi_head(
        None, query, key, value, EMBED, HEADS, own.in_proj_weight, own.in_proj_bias, own.bias_k, own.bias_v,
        own.add_zero_attn, 0.0, own.out_proj.weight, own.out_proj.bias, **how, **separate,
    )  # fmt: skip
    torch.testing.assert_close(out, want, rtol=1e-12, atol=1e-13)
    assert (seen is None) == (weights is None)
    if seen is not None and weights is not None:
        torch.testing.assert_close(seen, weights, rtol=1e-12, atol=1e-13)


def test_plain_operators_take_a_sample_alone() -> None:
    own = nn.MultiheadAttention(EMBED, HEADS).double()
    x = random_tensor(LENGTH, EMBED)
    want = own(x, x, x)
    out = multi_head(
        None, x, x, x, EMBED, HEADS, own.in_proj_weight, own.in_proj_bias, None, None, False, 0.0,
        own.out_proj.weight, own.out_proj.bias,
    )  # fmt: skip
    for left, right in zip(out, want, strict=True):
        torch.testing.assert_close(left, right, rtol=1e-12, atol=1e-13)


def test_a_query_that_may_look_at_nothing_gives_numbers_and_gradients() -> None:
    _, model = module_and_model(
        lambda: Attending(need_weights=False, mask=torch.ones_like(SQUARE), dropout=0.5)
    )
    params = {k: v.requires_grad_() for k, v in model.init(0)[0].items()}
    out = model.apply(params, {}, batch(random_tensor(3, LENGTH, EMBED)), True)[0].logits
    out.sum().backward()  # type: ignore[no-untyped-call]  # torch leaves it untyped
    assert all(v.grad is None or bool(v.grad.isfinite().all()) for v in params.values())


class Weights(nn.Module):
    """The attention weights themselves as outputs, the same for all keys before dropout."""

    def __init__(self, dropout: float, calls: int = 1) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(4, 2, dropout=dropout, batch_first=True)
        nn.init.zeros_(self.attention.in_proj_weight)
        self.calls = calls

    def forward(self, x: Tensor) -> Tensor:
        for _ in range(self.calls):
            out: Tensor = self.attention(x, x, x, average_attn_weights=False)[1]
        return out.flatten(1)


def weights(x: Tensor, train: bool = True, calls: int = 1, key: tuple[int, int] = (1, 2)) -> Tensor:
    model = from_module(Weights(0.3, calls).double())
    params, buffers = model.init(0)
    return model.apply(params, buffers, batch(x, key=key), train)[0].logits


def test_attention_drops_its_share_and_keeps_the_mean() -> None:
    """16 000 weights of 1/20 each: the share dropped varies by √(p(1−p)/n) = 0.0036."""
    out = weights(random_tensor(20, 20, 4)) * 20
    share = float((out == 0).double().mean())
    assert abs(share - 0.3) < 5 * 0.0036
    assert abs(float(out.mean()) - 1) < 0.03
    assert not (weights(random_tensor(20, 20, 4), train=False) == 0).any()


def test_attention_drops_by_the_key_alone() -> None:
    x = random_tensor(6, 5, 4)
    first = weights(x)
    torch.manual_seed(7)
    assert torch.equal(first, weights(x))
    assert torch.equal(first[:4], weights(x[:4]))  # so padding does not matter
    assert not torch.equal(first, weights(x, key=(1, 3)))
    assert not torch.equal(first, weights(x, calls=2))  # a layer that is called twice draws twice
