"""Philox in numpy and in torch: the published numbers, agreement of the two, and the distributions."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from kedge.core.errors import RequestError
from kedge.core.random import (
    MASK,
    Purpose,
    bits,
    normals,
    permutation,
    philox,
    torch_words,
    uniforms,
    words,
)

# Random123's kat_vectors, philox4x32 with 10 rounds: counter, key, answer.
KNOWN = [
    ("00000000 00000000 00000000 00000000", "00000000 00000000", "6627e8d5 e169c58d bc57ac4c 9b00dbd8"),
    ("ffffffff ffffffff ffffffff ffffffff", "ffffffff ffffffff", "408f276d 41c83b0e a20bc7c6 6d5451fd"),
    ("243f6a88 85a308d3 13198a2e 03707344", "a4093822 299f31d0", "d16cfe09 94fdcceb 5001e420 24126ea1"),
]
WORD = st.integers(0, MASK)


def hexadecimal(text: str) -> list[int]:
    return [int(word, 16) for word in text.split()]


@pytest.mark.parametrize(("counter", "key", "answer"), KNOWN)
def test_numpy_gives_the_published_answers(counter: str, key: str, answer: str) -> None:
    c0, c1, c2, c3 = (np.asarray(word, dtype=np.uint64) for word in hexadecimal(counter))
    k0, k1 = (np.asarray(word, dtype=np.uint64) for word in hexadecimal(key))
    assert [int(word) for word in philox((c0, c1, c2, c3), (k0, k1))] == hexadecimal(answer)


@pytest.mark.parametrize(("counter", "key", "answer"), KNOWN)
def test_torch_gives_the_published_answers(counter: str, key: str, answer: str) -> None:
    c0, c1, c2, c3 = hexadecimal(counter)
    k0, k1 = hexadecimal(key)
    assert [int(word) for word in torch_words((k0, k1), (c0, c1, c2, c3))] == hexadecimal(answer)
    tensors = (torch.tensor(c0), torch.tensor(c1), torch.tensor(c2), torch.tensor(c3))
    drawn = torch_words((torch.tensor(k0), torch.tensor(k1)), tensors)
    assert [word.item() for word in drawn] == hexadecimal(answer)
    assert all(word.dtype == torch.int64 for word in drawn)


@given(seed=WORD, round=WORD, client=WORD, step=WORD, position=WORD)
def test_numpy_and_torch_agree_bit_for_bit(
    seed: int, round: int, client: int, step: int, position: int
) -> None:
    drawn = words(seed, Purpose.DROPOUT, round=round, client=client, step=step, position=position)
    traced = torch_words(
        (seed, Purpose.DROPOUT), (torch.tensor(position), torch.tensor(step), torch.tensor(client), round)
    )
    assert drawn.tolist() == [int(word) for word in traced]


def test_numpy_and_torch_agree_when_mapped_over_clients() -> None:
    clients, positions = torch.tensor([3, MASK, 0]), torch.arange(7)

    def client_words(client: torch.Tensor) -> torch.Tensor:
        return torch.stack(torch_words((9, Purpose.DROPOUT), (positions, 5, client, 2)), dim=-1)

    drawn = words(9, Purpose.DROPOUT, round=2, client=clients.numpy()[:, None], step=5, position=np.arange(7))
    np.testing.assert_array_equal(torch.func.vmap(client_words)(clients).numpy(), drawn)


@pytest.mark.slow
def test_torch_words_compile_without_a_graph_break() -> None:
    traced = torch.compile(torch_words, fullgraph=True, backend="aot_eager")
    counter = (torch.arange(6), torch.tensor(4), torch.tensor(3), torch.tensor(2))
    drawn = torch.stack(traced((torch.tensor(1), 7), counter), dim=-1)
    expected = words(1, Purpose.DROPOUT, round=2, client=3, step=4, position=np.arange(6))
    np.testing.assert_array_equal(drawn.numpy(), expected)


def test_draws_do_not_depend_on_how_positions_are_sliced() -> None:
    whole = words(1, Purpose.SHUFFLE, client=np.arange(4)[:, None], position=np.arange(50))
    assert whole.shape == (4, 50, 4)
    part = words(1, Purpose.SHUFFLE, client=2, position=np.arange(17, 31))
    np.testing.assert_array_equal(whole[2, 17:31], part)


def test_bits_join_the_first_two_words() -> None:
    first, second, _, _ = words(5, Purpose.INIT, position=8).tolist()
    assert int(bits(5, Purpose.INIT, position=8)) == first << 32 | second


@pytest.mark.parametrize("drawn", [0, 2**64 - 1])
def test_uniforms_stay_inside_the_open_interval(drawn: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Extreme values: all bits 0 and all bits 1; a plain (b + 0.5)/2^53 would round the latter to 1."""
    half = np.asarray(drawn & MASK, dtype=np.uint64)
    monkeypatch.setattr("kedge.core.random.philox", lambda counter, key: (half,) * 4)
    assert 0 < float(uniforms(0, Purpose.INIT)) < 1
    assert np.isfinite(normals(0, Purpose.INIT))


def test_uniforms_are_uniform() -> None:
    """χ² over 100 equal cells has mean 99 and standard deviation √198 ≈ 14; 170 is five of them away."""
    drawn = uniforms(3, Purpose.SAMPLING, client=np.arange(100)[:, None], position=np.arange(1000))
    counts = np.bincount((drawn.ravel() * 100).astype(int), minlength=100)
    assert ((counts - 1000) ** 2 / 1000).sum() < 170


def test_normals_have_mean_zero_variance_one_and_kurtosis_three() -> None:
    drawn = normals(3, Purpose.SYNTHETIC, position=np.arange(200_000))
    assert abs(drawn.mean()) < 0.01
    assert abs(drawn.var() - 1) < 0.02
    assert abs((drawn**4).mean() - 3) < 0.1


@given(n=st.integers(0, 300), seed=WORD, client=WORD)
def test_permutation_is_a_permutation(n: int, seed: int, client: int) -> None:
    order = permutation(n, seed, Purpose.SHUFFLE, client=client)
    assert order.dtype == np.int64
    assert sorted(order.tolist()) == list(range(n))


def test_permutations_of_many_clients_are_those_of_each() -> None:
    table = permutation(20, 1, Purpose.SHUFFLE, round=4, client=np.array([5, 9]), step=2)
    for row, client in zip(table, [5, 9], strict=True):
        np.testing.assert_array_equal(
            row, permutation(20, 1, Purpose.SHUFFLE, round=4, client=client, step=2)
        )


def test_every_part_of_the_key_matters() -> None:
    orders = [
        permutation(30, 1, Purpose.SHUFFLE),
        permutation(30, 2, Purpose.SHUFFLE),
        permutation(30, 1, Purpose.SPLIT),
        permutation(30, 1, Purpose.SHUFFLE, round=1),
        permutation(30, 1, Purpose.SHUFFLE, client=1),
        permutation(30, 1, Purpose.SHUFFLE, step=1),
    ]
    assert len({tuple(order.tolist()) for order in orders}) == len(orders)


@pytest.mark.parametrize("seed", [-1, 2**32])
def test_a_seed_outside_32_bits_is_refused(seed: int) -> None:
    with pytest.raises(RequestError, match=rf"seed={seed}: need an integer, 0 ≤ seed < 2\^32"):
        words(seed, Purpose.INIT)


def test_a_counter_outside_32_bits_is_refused() -> None:
    with pytest.raises(RequestError, match="client="):
        bits(0, Purpose.INIT, client=np.array([0, -1]))
