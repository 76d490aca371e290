"""Precisions: torch's flags, their restoration, rounding and messages."""

from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.func import vmap

import kedge
from kedge.core.errors import RequestError
from kedge.core.model import Batch
from kedge.models import MODELS
from kedge.nn.from_module import from_module
from kedge.nn.precision import computing_in, in_precision


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


CONVOLUTIONS: dict[str, nn.Module] = {
    "grouped": nn.Conv2d(6, 6, 3, padding=1, groups=2),
    "depthwise": nn.Conv2d(6, 6, 3, padding=1, groups=6),
    "plain": nn.Conv2d(6, 6, 3, padding=1),
    "same": nn.Conv2d(6, 6, 3, padding="same"),
    "circular": nn.Conv2d(6, 6, 3, padding=1, padding_mode="circular"),
    "transposed": nn.ConvTranspose2d(6, 6, 3, padding=1),
    "1d": nn.Sequential(nn.Flatten(2), nn.Conv1d(6, 6, 3, padding=1)),
    "transposed-1d": nn.Sequential(nn.Flatten(2), nn.ConvTranspose1d(6, 6, 3, padding=1)),
    "3d": nn.Sequential(nn.Unflatten(1, (6, 1)), nn.Conv3d(6, 6, 3, padding=1)),
    "transposed-3d": nn.Sequential(nn.Unflatten(1, (6, 1)), nn.ConvTranspose3d(6, 6, 3, padding=1)),
    "prelu": nn.PReLU(6),
    "layer-norm": nn.LayerNorm(8),
    "group-norm": nn.GroupNorm(2, 6),
}


@pytest.mark.parametrize("train", [True, False])
@pytest.mark.parametrize("layer", CONVOLUTIONS)
def test_rows_of_a_stack_are_rounded_as_one_model_is(layer: str, train: bool) -> None:
    """Without a gradient transform around it, vmap decomposes a convolution before autocast sees it."""
    torch.manual_seed(0)
    first = nn.Linear(8, 8, bias=False)  # its output is in bfloat16 on every device
    rest = nn.Sequential(CONVOLUTIONS[layer], nn.Flatten(), nn.LazyLinear(4))
    module = nn.Sequential(first, *rest)
    module(torch.randn(2, 6, 8, 8))
    model = in_precision(from_module(module), "bf16")
    one, _ = model.init(0)
    stacked = {k: torch.stack([v, 1.1 * v]) for k, v in one.items()}
    batch = Batch(torch.randn(5, 6, 8, 8), torch.zeros(5).long(), torch.ones(5), torch.zeros(2).long())

    def logits(params: dict[str, torch.Tensor]) -> torch.Tensor:
        return model.apply(params, {}, batch, train)[0].logits

    alone = torch.stack([logits({k: v[row] for k, v in stacked.items()}) for row in range(2)])
    rows = vmap(logits)(stacked)
    assert rows.dtype == torch.float32
    assert float((rows - alone).abs().max() / alone.abs().max()) < 2e-2
    assert not rows.requires_grad


def test_models_of_clients_are_measured_in_bf16_side_by_side() -> None:
    torch.manual_seed(0)
    module = nn.Sequential(
        nn.Linear(8, 8, bias=False), nn.Conv2d(3, 6, 3, groups=3), nn.Flatten(), nn.Linear(6 * 36, 3)
    )
    draw = np.random.default_rng(0)
    clients = [kedge.Dataset(draw.standard_normal((6, 3, 8, 8)), np.arange(6) % 3) for _ in range(2)]
    runs = [
        kedge.train(module, clients, local_tests=clients, method="fedper", rounds=1, precision="bf16",
                    engine=engine, compile="off", progress=False)
        for engine in ("sequential", "stacked")
    ]  # fmt: skip
    alone, stacked = (run.metric("personal.local.loss").last for run in runs)
    assert abs(alone - stacked) < 2e-2 * alone
