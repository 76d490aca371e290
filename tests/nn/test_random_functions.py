"""torch's random functions as functions of a key: distributions, and different numbers at every call."""

from pathlib import Path

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F
from torch.overrides import resolve_name

from kedge.core.errors import RequestError
from kedge.nn.keyed import normal, random_words, uniform
from kedge.nn.random_functions import KEYED_FUNCTIONS, KeyedFunctions

KEY = torch.tensor([3, 4])
N = 40_000  # the standard error of a mean is √(1/12/N) = 0.0014 for uniform, 0.005 for normal numbers


def test_uniform_and_normal_numbers_have_their_moments() -> None:
    for dtype in (torch.float64, torch.float32):
        flat = uniform(random_words(KEY, (200, 200), 1, 0), dtype)
        assert 0 <= float(flat.min()) < 0.001 < 0.999 < float(flat.max()) < 1
        assert abs(float(flat.mean()) - 0.5) < 5 * 0.0014
        bell = normal(random_words(KEY, (200, 200, 2), 1, 0), dtype)
        assert bell.shape == (200, 200)
        assert abs(float(bell.mean())) < 5 * 0.005
        assert abs(float(bell.std()) - 1) < 0.02
        assert abs(float((bell.abs() < 1).double().mean()) - 0.6827) < 5 * 0.0023


def test_words_depend_on_key_call_and_place_but_not_on_how_many_samples_there_are() -> None:
    words = random_words(KEY, (6, 3, 5), 1, 0)
    assert torch.equal(words[:4], random_words(KEY, (4, 3, 5), 1, 0))
    assert len(set(words.flatten().tolist())) == 90
    for key, call, draw in ((KEY + 1, 1, 0), (KEY, 2, 0), (KEY, 1, 1)):
        other = random_words(key, (6, 3, 5), call, draw)
        assert not torch.equal(words, other)
    assert random_words(KEY, (), 1, 0).shape == ()
    assert random_words(KEY, (0, 3), 1, 0).shape == (0, 3)


def test_each_call_draws_anew_and_a_forward_pass_repeats() -> None:
    with KeyedFunctions(KEY):
        first, second = torch.rand(3, 4), torch.rand((3, 4))
    with KeyedFunctions(KEY):
        again = torch.rand(torch.Size([3, 4]))
    assert torch.equal(first, again)
    assert not torch.equal(first, second)


def test_functions_give_what_torchs_promise() -> None:
    x = torch.ones(200, 200)
    with KeyedFunctions(KEY):
        dropped = F.dropout(x, 0.3)
        assert abs(float((dropped == 0).float().mean()) - 0.3) < 5 * 0.0023
        assert set(dropped.flatten().tolist()) == {0.0, float(torch.tensor(1.0) / 0.7)}
        assert F.dropout(x, 0.3, training=False) is x
        whole = F.dropout2d(torch.ones(50, 40, 3, 3), 0.5).flatten(2)
        assert bool((whole == whole[..., :1]).all())
        assert F.dropout(x, 1.0).abs().max() == 0
        assert set(torch.randint(2, 5, (1000,)).tolist()) == {2, 3, 4}
        assert set(torch.randint(3, (1000,)).tolist()) == {0, 1, 2}
        assert abs(float(torch.bernoulli(torch.full_like(x, 0.2)).mean()) - 0.2) < 5 * 0.002
        assert abs(float(torch.ones(N).exponential_(2.0).mean()) - 0.5) < 5 * 0.0025
        assert abs(float(torch.normal(5.0, 2.0, (N,)).mean()) - 5) < 5 * 0.01
        between = torch.empty(N).uniform_(-2, -1)
        assert float(between.min()) >= -2
        assert float(between.max()) < -1
        slopes = F.rrelu(-x, 0.1, 0.2, training=True)
        assert bool(((slopes <= -0.1) & (slopes >= -0.2)).all())
        soft, hard = F.gumbel_softmax(x), F.gumbel_softmax(x, hard=True)
        torch.testing.assert_close(soft.sum(-1), torch.ones(200))
        torch.testing.assert_close(hard.sort(-1).values[:, -2:], torch.tensor([[0.0, 1.0]]).expand(200, 2))
        assert torch.rand(4, dtype=torch.float64).dtype == torch.float64
        assert torch.randn_like(x, dtype=torch.float16).dtype == torch.float16


def test_gumbel_softmax_picks_by_the_probabilities() -> None:
    logits = torch.tensor([0.5, 0.3, 0.2]).log().expand(N, 3)
    with KeyedFunctions(KEY):
        picked = F.gumbel_softmax(logits, hard=True).mean(0)
    torch.testing.assert_close(picked, torch.tensor([0.5, 0.3, 0.2]), rtol=0, atol=5 * 0.0025)


def attention_without_dropout(q: Tensor, k: Tensor, v: Tensor, **how: object) -> Tensor:
    with KeyedFunctions(KEY):
        return F.scaled_dot_product_attention(q, k, v, dropout_p=1e-12, **how)  # type: ignore[arg-type]


def test_keyed_attention_is_torchs_when_nothing_is_dropped() -> None:
    make = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(2, 4, n, 6, generator=make, dtype=torch.float64) for n in (5, 7, 7))
    mask = torch.randn(5, 7, generator=make, dtype=torch.float64)
    for how in ({}, {"attn_mask": mask}, {"attn_mask": mask > 0}, {"is_causal": True}, {"scale": 0.3}):
        want = F.scaled_dot_product_attention(q, k, v, **how)
        torch.testing.assert_close(attention_without_dropout(q, k, v, **how), want, rtol=1e-11, atol=1e-12)
    few = k[:, :2], v[:, :2]
    want = F.scaled_dot_product_attention(q, *few, enable_gqa=True)
    torch.testing.assert_close(
        attention_without_dropout(q, *few, enable_gqa=True), want, rtol=1e-11, atol=1e-12
    )


def test_a_generator_of_ones_own_is_refused() -> None:
    with KeyedFunctions(KEY), pytest.raises(RequestError, match=r"torch\.Generator in a forward pass"):
        torch.rand(3, generator=torch.Generator())


def test_the_docs_name_every_function_that_is_answered() -> None:
    text = (Path(__file__).parents[2] / "docs" / "modules.md").read_text()
    short = {"torch.nn.functional": "F", "torch.Tensor": "Tensor", "torch._C._nn": "F"}
    for function in KEYED_FUNCTIONS:
        place, _, name = resolve_name(function).rpartition(".")
        assert f"{short.get(place, place)}.{name}" in text


def test_numbers_into_given_memory_are_refused() -> None:
    with KeyedFunctions(KEY), pytest.raises(RequestError, match=r"out=\.\.\. are not supported"):
        torch.rand(3, out=torch.zeros(3))
