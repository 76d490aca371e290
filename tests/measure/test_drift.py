"""Diversity and cosines against sums over pairs in numpy, their laws, and degenerate vectors."""

import math
from itertools import combinations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from kedge.core.tree import Leaves
from kedge.measure.drift import (
    client_cosine,
    cosine,
    gradient_diversity,
    intra_client_cosine,
    mean_over_clients,
)

VECTORS = arrays(
    np.float64,
    st.tuples(st.integers(2, 6), st.integers(1, 5)),
    elements=st.floats(-3, 3).map(lambda x: round(x, 3)),
)


def leaves(*values: float) -> Leaves:
    """A vector over two leaves, the first number by itself."""
    return {"a": torch.tensor(values[:1]).double(), "b": torch.tensor(values[1:]).double()}


@given(VECTORS)
def test_diversity_and_cosine_are_what_the_vectors_say(vectors: np.ndarray) -> None:
    """Compare with sums over vectors and over pairs in numpy."""
    together = float(np.square(vectors.sum(0)).sum())
    found = gradient_diversity([leaves(*v) for v in vectors])
    if together > 1e-6:
        assert found == pytest.approx(np.square(vectors).sum() / together, rel=1e-9)
    lengths = np.linalg.norm(vectors, axis=1)
    directed = [v / length for v, length in zip(vectors, lengths, strict=True) if length > 0]
    pairs = [float(u @ v) for u, v in combinations(directed, 2)]
    mean = client_cosine([leaves(*v) for v in vectors])
    assert mean == (pytest.approx(sum(pairs) / len(pairs), abs=1e-9) if pairs else None)


@given(VECTORS, st.sampled_from([-3.0, -0.01, 0.5, 100.0]))
def test_neither_scale_nor_sign_nor_order_matters(vectors: np.ndarray, factor: float) -> None:
    if np.square(vectors.sum(0)).sum() > 1e-6:
        plain = gradient_diversity([leaves(*v) for v in vectors])
        moved = gradient_diversity([leaves(*(factor * v)) for v in vectors[::-1]])
        assert moved == pytest.approx(plain, rel=1e-9)


def test_equal_vectors_have_one_over_n_and_orthogonal_ones_have_one() -> None:
    assert gradient_diversity([leaves(2, 1, -1)] * 4) == pytest.approx(0.25, abs=1e-12)
    assert gradient_diversity([leaves(1, 0, 0), leaves(0, 2, 0), leaves(0, 0, 3)]) == 1
    assert client_cosine([leaves(2, 1, -1), leaves(4, 2, -2)]) == pytest.approx(1, abs=1e-12)
    assert client_cosine([leaves(1, 0, 0), leaves(-3, 0, 0)]) == pytest.approx(-1, abs=1e-12)


def test_what_has_no_value_says_so() -> None:
    still = leaves(0, 0, 0)
    assert gradient_diversity([leaves(1, 2, 0), leaves(-1, -2, 0)]) == math.inf
    assert gradient_diversity([still, still]) is None
    assert gradient_diversity([]) is None
    assert gradient_diversity([leaves(3, 0, 1)]) == 1
    assert client_cosine([leaves(1, 0, 0)]) is None
    assert client_cosine([leaves(1, 0, 0), still]) is None
    assert client_cosine([]) is None
    assert cosine(still, leaves(1, 0, 0)) is None


def test_a_client_is_compared_with_its_own_past() -> None:
    past = [leaves(1, 0, 0), leaves(0, 0, 0), leaves(1, 1, 0), leaves(0, 1, 0)]
    assert intra_client_cosine(past) == [0, None, pytest.approx(math.sqrt(0.5), abs=1e-12)]
    assert intra_client_cosine(past[:1]) == []
    assert mean_over_clients([[0.5, None, 1.0], [0.1, None, None]]) == [pytest.approx(0.3), None, 1.0]
