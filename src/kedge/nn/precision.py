"""Precisions: fp64, fp32, tf32 (matrix products on tensor cores), bf16 (autocast, weights in fp32)."""

from __future__ import annotations  # so dynamo does not evaluate annotations of inner functions

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Literal

import torch

from kedge.core.model import Batch, Model, Output
from kedge.core.tree import Leaves
from kedge.nn.transforms import call_with_autocast_first, under_vmap

Precision = Literal["fp64", "fp32", "tf32", "bf16"]
DTYPES: dict[str, torch.dtype] = {
    "fp64": torch.float64,
    "fp32": torch.float32,
    "tf32": torch.float32,
    "bf16": torch.float32,  # weights, statistics and everything except matrix products and convolutions
}


@contextmanager
def computing_in(precision: Precision) -> Iterator[None]:
    """In this context a GPU computes products in `precision`, with deterministic convolutions.

    Without it torch would round the inputs of convolutions to tf32.
    """
    cuda, cudnn = torch.backends.cuda.matmul, torch.backends.cudnn
    before = cuda.allow_tf32, cudnn.allow_tf32, cudnn.deterministic
    tf32 = precision in ("tf32", "bf16")
    cuda.allow_tf32, cudnn.allow_tf32, cudnn.deterministic = tf32, tf32, True
    try:
        yield
    finally:
        cuda.allow_tf32, cudnn.allow_tf32, cudnn.deterministic = before


def in_precision(model: Model, precision: Precision) -> Model:
    """The model under autocast if `precision` is bf16; the dtypes of its inputs and outputs do not change."""
    if precision != "bf16":
        return model

    def apply(params: Leaves, buffers: Leaves, batch: Batch, train: bool) -> tuple[Output, Leaves]:
        def forward() -> tuple[Output, Leaves]:
            with torch.autocast(batch.x.device.type, torch.bfloat16, cache_enabled=False):
                return model.apply(params, buffers, batch, train)

        out, new_buffers = call_with_autocast_first(forward, batch.x) if under_vmap() else forward()
        extra = {k: v.to(batch.x.dtype) for k, v in out.extra.items()}
        converted = Output(out.features.to(batch.x.dtype), out.logits.to(batch.x.dtype), extra)
        return converted, {k: v.to(buffers[k].dtype) for k, v in new_buffers.items()}

    return replace(model, apply=apply, half=True)
