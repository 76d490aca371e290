"""Random numbers as pure functions of a key: Philox4x32-10 (Salmon et al., 2011, "Parallel random numbers").

The key is (seed, purpose), the counter is (position, step, client, round). There is no generator with a
state: a number does not depend on earlier draws, on the number of stacked clients or on the version of a
library, and a resumed run draws the same numbers because it knows its round.

Philox repeats the following round ten times, each time with another key, on the counter (c0, c1, c2, c3) of
32-bit words:

    c0' = hi(M1·c2) ^ c1 ^ k0    c1' = lo(M1·c2)    c2' = hi(M0·c0) ^ c3 ^ k1    c3' = lo(M0·c0)

There are two implementations, which agree bit for bit: one for numpy (uint64, which can store the product of
two 32-bit words) and one for torch (int64, which cannot, so products are computed from 16-bit halves).
"""

from enum import IntEnum

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from kedge.core.errors import RequestError

MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
WEYL = (0x9E3779B9, 0xBB67AE85)  # added to the key after every round
ROUNDS = 10
MIXING_ROUNDS = 2  # rounds after which every word depends on the whole counter
MASK = 0xFFFFFFFF

Integers = int | NDArray[np.integer]
Words = NDArray[np.uint64]  # 32-bit words in 64-bit integers
IntOrTensor = int | Tensor


class Purpose(IntEnum):
    """The purpose of a draw: draws for different purposes are independent."""

    INIT = 1
    PARTITION = 2
    SAMPLING = 3
    SHUFFLE = 4
    SPLIT = 5
    SYNTHETIC = 6
    DROPOUT = 7
    AUGMENT = 8
    TUNE_SHUFFLE = 9
    TUNE_DROPOUT = 10
    TUNE_AUGMENT = 11
    LINEAR = 12  # initial weights of the linear laboratory (`kedge theory`)
    PRIVACY = 13  # noise of private runs


def philox(counter: tuple[Words, Words, Words, Words], key: tuple[Words, Words]) -> tuple[Words, ...]:
    """Philox4x32-10 of broadcastable uint64 arrays that contain 32-bit words."""
    c0, c1, c2, c3 = counter
    k0, k1 = key
    m0, m1 = np.uint64(MULTIPLIERS[0]), np.uint64(MULTIPLIERS[1])
    w0, w1 = np.uint64(WEYL[0]), np.uint64(WEYL[1])
    mask, half = np.uint64(MASK), np.uint64(32)
    for _ in range(MIXING_ROUNDS):
        product0, product1 = c0 * m0, c2 * m1
        c0, c1, c2, c3 = (
            (product1 >> half) ^ (c1 ^ k0),
            product1 & mask,
            (product0 >> half) ^ (c3 ^ k1),
            product0 & mask,
        )
        k0, k1 = (k0 + w0) & mask, (k1 + w1) & mask
    # From here on all arrays have the size of the result, and allocating one takes longer than computing it.
    c0, c1, c2, c3 = (v.copy() for v in np.broadcast_arrays(c0, c1, c2, c3))
    product0, product1, high = (np.empty_like(c0) for _ in range(3))
    for _ in range(ROUNDS - MIXING_ROUNDS):
        np.multiply(c0, m0, out=product0)
        np.multiply(c2, m1, out=product1)
        for product, word, k in ((product1, c1, k0), (product0, c3, k1)):
            np.right_shift(product, half, out=high)
            np.bitwise_xor(word, k, out=word)
            np.bitwise_xor(word, high, out=word)
            np.bitwise_and(product, mask, out=product)
        c0, c1, c2, c3, product0, product1 = c1, product1, c3, product0, c0, c2
        k0, k1 = (k0 + w0) & mask, (k1 + w1) & mask
    return c0, c1, c2, c3


def torch_words(
    key: tuple[IntOrTensor, IntOrTensor],
    counter: tuple[IntOrTensor, IntOrTensor, IntOrTensor, IntOrTensor],
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Philox4x32-10 of broadcastable int64 tensors or ints that contain 32-bit words.

    The key is (seed, purpose), the counter (position, step, client, round). The numbers are those of `words`,
    as int64 in 0..2^32-1. Works under vmap and tracing.
    """
    c0, c1, c2, c3 = counter
    k0, k1 = key
    for _ in range(ROUNDS):
        (high0, low0), (high1, low1) = _product_words(MULTIPLIERS[0], c0), _product_words(MULTIPLIERS[1], c2)
        c0, c1, c2, c3 = high1 ^ c1 ^ k0, low1, high0 ^ c3 ^ k1, low0
        k0, k1 = (k0 + WEYL[0]) & MASK, (k1 + WEYL[1]) & MASK
    return torch.as_tensor(c0), torch.as_tensor(c1), torch.as_tensor(c2), torch.as_tensor(c3)


def _product_words(multiplier: int, word: IntOrTensor) -> tuple[IntOrTensor, IntOrTensor]:
    """The high and low 32-bit words of multiplier·word; no intermediate result reaches 2^49."""
    upper, lower = multiplier * (word >> 16), multiplier * (word & 0xFFFF)
    return (upper + (lower >> 16)) >> 16, (((upper & 0xFFFF) << 16) + lower) & MASK


def words(
    seed: Integers,
    purpose: int,
    *,
    round: Integers = 0,
    client: Integers = 0,
    step: Integers = 0,
    position: Integers = 0,
) -> NDArray[np.uint32]:
    """Four words of 32 random bits per key, [..., 4]; the arguments broadcast against each other."""
    drawn = _philox_words(seed, purpose, round, client, step, position)
    return np.stack([word.astype(np.uint32) for word in np.broadcast_arrays(*drawn)], axis=-1)


def bits(
    seed: Integers,
    purpose: int,
    *,
    round: Integers = 0,
    client: Integers = 0,
    step: Integers = 0,
    position: Integers = 0,
) -> NDArray[np.uint64]:
    """64 random bits per key: the first word is the upper half."""
    first, second, _, _ = _philox_words(seed, purpose, round, client, step, position)
    return _concatenated(first, second)


def uniforms(
    seed: Integers,
    purpose: int,
    *,
    round: Integers = 0,
    client: Integers = 0,
    step: Integers = 0,
    position: Integers = 0,
) -> NDArray[np.float64]:
    """Uniform numbers in the open interval (0, 1), from 53 random bits."""
    first, second, _, _ = _philox_words(seed, purpose, round, client, step, position)
    return _open_interval(_concatenated(first, second))


def normals(
    seed: Integers,
    purpose: int,
    *,
    round: Integers = 0,
    client: Integers = 0,
    step: Integers = 0,
    position: Integers = 0,
) -> NDArray[np.float64]:
    """Standard normal numbers: radius from two words, angle from the other two."""
    first, second, third, fourth = _philox_words(seed, purpose, round, client, step, position)
    return normals_from_bits(_concatenated(first, second), _concatenated(third, fourth))


def normals_from_bits(radius: NDArray[np.uint64], angle: NDArray[np.uint64]) -> NDArray[np.float64]:
    """Standard normal numbers (Box and Muller, 1958) from two arrays of 64 random bits."""
    length = np.sqrt(-2 * np.log(_open_interval(radius)))
    return np.asarray(length * np.cos(2 * np.pi * _open_interval(angle)))


def permutation(
    n: int, seed: int, purpose: int, *, round: Integers = 0, client: Integers = 0, step: Integers = 0
) -> NDArray[np.int64]:
    """A random permutation of 0..n-1 per key, [..., n]: the stable argsort of n draws."""
    counter = {"round": round, "client": client, "step": step}
    columns = {name: np.asarray(value)[..., None] for name, value in counter.items()}
    return np.argsort(bits(seed, purpose, position=np.arange(n), **columns), axis=-1, kind="stable")


def _philox_words(
    seed: Integers, purpose: int, round: Integers, client: Integers, step: Integers, position: Integers
) -> tuple[Words, ...]:
    counter = {"position": position, "step": step, "client": client, "round": round}
    c0, c1, c2, c3 = (_word(name, value) for name, value in counter.items())
    return philox((c0, c1, c2, c3), (_word("seed", seed), np.asarray(purpose, dtype=np.uint64)))


def _word(name: str, value: Integers) -> Words:
    array = np.asarray(value)
    if array.dtype.kind not in "iu" or (array.size and (array.min() < 0 or array.max() > MASK)):
        raise RequestError(
            f"{name}={value}: need an integer, 0 ≤ {name} < 2^32. It is a 32-bit word of a random key."
        )
    return array.astype(np.uint64)


def _concatenated(upper: Words, lower: Words) -> NDArray[np.uint64]:
    return np.asarray((upper << np.uint64(32)) | lower)


def _open_interval(drawn: NDArray[np.uint64]) -> NDArray[np.float64]:
    """Odd numerators over 2^53: exact, symmetric around 1/2, never 0 or 1."""
    return np.asarray((drawn >> np.uint64(11) | np.uint64(1)) * 2.0**-53)
