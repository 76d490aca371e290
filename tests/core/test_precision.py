"""Precisions: what is set, put back, rounded and told."""

from typing import Any

import pytest
import torch

import kedge
from kedge.core.errors import RequestError
from kedge.core.model import Batch, from_module
from kedge.core.precision import computing_in, in_precision
from kedge.models import MODELS


def flags() -> tuple[bool, bool, bool]:
    cuda, cudnn = torch.backends.cuda.matmul, torch.backends.cudnn
    return cuda.allow_tf32, cudnn.allow_tf32, cudnn.deterministic


@pytest.mark.parametrize(
    ("precision", "expected"),
    [("fp64", False), ("fp32", False), ("tf32", True), ("bf16", True)],
)
def test_products_round_only_where_asked_and_all_is_put_back(precision: str, expected: bool) -> None:
    before = flags()
    with computing_in(precision):  # type: ignore[arg-type]
        assert flags() == (expected, expected, True)
    assert flags() == before


def test_bf16_rounds_products_and_hands_back_what_it_was_given() -> None:
    model = from_module(MODELS["small-cnn"]((1, 8, 8), 4, norm="batch"))
    params, buffers = model.init(0)
    batch = Batch(
        torch.randn(6, 1, 8, 8), torch.zeros(6, dtype=torch.int64), torch.ones(6), torch.zeros(2).long()
    )
    exact, _ = model.apply(params, buffers, batch, True)
    out, moved = in_precision(model, "bf16").apply(params, buffers, batch, True)
    assert out.logits.dtype == out.features.dtype == torch.float32
    assert all(v.dtype == torch.float32 for v in moved.values())
    away = float((out.logits - exact.logits).abs().max() / exact.logits.abs().max())
    assert 1e-5 < away < 5e-2
    assert in_precision(model, "tf32") is model


def test_a_run_in_bf16_says_so_in_every_line() -> None:
    settings: dict[str, Any] = {"rounds": 1, "participation.per_round": 2, "engine.name": "sequential"}
    result = kedge.run("quickstart", progress=False, **settings, **{"engine.precision": "bf16"})
    assert [line["precision"] for line in result.history] == ["bf16"]
    assert result.engine["precision"] == "bf16"
    assert all(v.dtype == torch.float32 for v in result.model.values())
    exact = kedge.run("quickstart", progress=False, **settings)
    assert "precision" not in exact.history[0]


def test_tf32_needs_a_gpu() -> None:
    if torch.cuda.is_available():
        pytest.skip("there is one")
    with pytest.raises(RequestError, match="tf32': needs a CUDA device"):
        kedge.run("quickstart", progress=False, **{"engine.precision": "tf32"})
