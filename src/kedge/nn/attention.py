"""Attention with dropout that is a function of a key, for every engine.

torch's own layers draw dropout from a global generator, and in evaluation call a fused operator without a
batching rule for `vmap`. Without dropout the layers here call `F.multi_head_attention_forward`.
"""

import math
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from kedge.core.errors import RequestError
from kedge.nn.gpu.operators import is_row
from kedge.nn.keyed import Drop, KeyedLayer, drop
from kedge.torch_private import is_make_fx_tracing

AttentionResult = tuple[Tensor, Tensor | None]


def is_traced() -> bool:
    """Whether torch.compile or make_fx is tracing now."""
    return torch.compiler.is_compiling() or is_make_fx_tracing()


def attend(  # noqa: PLR0913  # torch's signature
    q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, scale: float, p: float, drop: Drop | None
) -> tuple[Tensor, Tensor]:
    """Scaled dot-product attention in plain operators: outputs [..., L, E], weights [..., L, S].

    `mask` is added to the scores. A query with every key masked has weights of 0, as in torch.
    """
    scores = (q * scale) @ k.transpose(-2, -1)
    if mask is None:
        weights = torch.softmax(scores, -1)
    else:
        scores = scores + mask
        masked_rows = (mask == -math.inf).all(-1, keepdim=True)  # queries whose keys are all masked
        weights = torch.where(masked_rows, 0.0, torch.softmax(torch.where(masked_rows, 0.0, scores), -1))
    if drop is not None and p > 0:
        weights = drop(weights, p)
    return weights @ v, weights


def scaled_dot_product_attention(  # noqa: PLR0913  # torch's signature
    drop: Drop,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    """F.scaled_dot_product_attention, with `drop` as its dropout."""
    if enable_gqa:
        repeats = query.shape[-3] // key.shape[-3]
        key, value = (v.repeat_interleave(repeats, -3) for v in (key, value))
    mask = additive_mask(attn_mask, query.dtype)
    if is_causal:
        ones = torch.ones(query.shape[-2], key.shape[-2], dtype=torch.bool, device=query.device)
        mask = additive_mask(ones.tril(), query.dtype)
    scale = 1 / math.sqrt(query.shape[-1]) if scale is None else scale
    return attend(query, key, value, mask, scale, dropout_p, drop)[0]


def additive_mask(mask: Tensor | None, dtype: torch.dtype, allowed: bool = True) -> Tensor | None:
    """A mask to add to scores: -inf for the keys that a boolean `mask` excludes.

    A boolean `mask` has the value `allowed` for the keys to attend to; other masks are returned unchanged.
    """
    if mask is None or mask.dtype != torch.bool:
        return mask
    zeros = torch.zeros(mask.shape, dtype=dtype, device=mask.device)
    return zeros.masked_fill(~mask if allowed else mask, -math.inf)


def multi_head(  # noqa: PLR0913  # torch's signature
    drop: Drop | None,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    embed_dim_to_check: int,
    num_heads: int,
    in_proj_weight: Tensor | None,
    in_proj_bias: Tensor | None,
    bias_k: Tensor | None,
    bias_v: Tensor | None,
    add_zero_attn: bool,
    dropout_p: float,
    out_proj_weight: Tensor,
    out_proj_bias: Tensor | None,
    training: bool = True,
    key_padding_mask: Tensor | None = None,
    need_weights: bool = True,
    attn_mask: Tensor | None = None,
    use_separate_proj_weight: bool = False,
    q_proj_weight: Tensor | None = None,
    k_proj_weight: Tensor | None = None,
    v_proj_weight: Tensor | None = None,
    static_k: Tensor | None = None,
    static_v: Tensor | None = None,
    average_attn_weights: bool = True,
    is_causal: bool = False,
) -> AttentionResult:
    """F.multi_head_attention_forward in plain operators, with `drop` as its dropout; sequences [L, N, E]."""
    if static_k is not None or static_v is not None:
        raise RequestError(
            "F.multi_head_attention_forward with static_k or static_v is not supported: leave them out."
        )
    if is_causal and attn_mask is None:
        raise RequestError("attention with is_causal=True needs attn_mask as well, as in torch: pass both.")
    batched = query.dim() == 3
    if not batched:
        query, key, value = (v.unsqueeze(1) for v in (query, key, value))
        key_padding_mask = None if key_padding_mask is None else key_padding_mask.unsqueeze(0)
    if use_separate_proj_weight:
        projections = q_proj_weight, k_proj_weight, v_proj_weight
        biases = (None,) * 3 if in_proj_bias is None else in_proj_bias.chunk(3)
        q, k, v = (
            F.linear(x, w, b)  # type: ignore[arg-type]  # torch demands all three weights
            for x, w, b in zip((query, key, value), projections, biases, strict=True)
        )
    else:
        q, k, v = input_projections(query, key, value, in_proj_weight, in_proj_bias)
    samples, width = q.shape[1:]
    sources = len(k)
    if bias_k is not None and bias_v is not None:
        k, v = (torch.cat([x, b.expand(1, samples, width)]) for x, b in ((k, bias_k), (v, bias_v)))
    if add_zero_attn:
        k, v = (torch.cat([x, x.new_zeros(1, samples, width)]) for x in (k, v))
    added = len(k) - sources
    # [L, N, E] -> [N, heads, L, E / heads]
    q, k, v = (x.view(*x.shape[:2], num_heads, -1).permute(1, 2, 0, 3) for x in (q, k, v))
    mask = joint_mask(q, attn_mask, key_padding_mask, added)
    p = dropout_p if training else 0.0
    out, weights = attend(q, k, v, mask, 1 / math.sqrt(q.shape[-1]), p, drop)
    out = F.linear(out.permute(2, 0, 1, 3).flatten(2), out_proj_weight, out_proj_bias)
    if average_attn_weights:
        weights = weights.mean(1)
    if not batched:
        out, weights = out.squeeze(1), weights.squeeze(0)
    return out, weights if need_weights else None


def joint_mask(q: Tensor, mask: Tensor | None, padding: Tensor | None, added: int) -> Tensor | None:
    """The attention mask and the padding mask as one additive mask for `q`, [N, heads, L, E], or None.

    The last `added` keys, which are not part of the input, are never masked.
    """
    samples, heads, length, _ = q.shape
    mask, padding = (
        None if additive is None else F.pad(additive, (0, added))
        for additive in (additive_mask(m, q.dtype, allowed=False) for m in (mask, padding))
    )
    if mask is not None and mask.dim() == 3:
        mask = mask.reshape(samples, heads, *mask.shape[1:])
    if padding is not None:
        padding = padding[:, None, None, :]
        mask = padding if mask is None else mask + padding
    return None if mask is None else mask.expand(*mask.shape[:-2], length, mask.shape[-1])


def input_projections(
    query: Tensor, key: Tensor, value: Tensor, weight: Tensor | None, bias: Tensor | None
) -> tuple[Tensor, ...]:
    """The projections of query, key and value by the parts of `weight`; self-attention takes one product."""
    assert weight is not None
    if query is key and key is value:
        return F.linear(query, weight, bias).chunk(3, -1)
    biases = (None,) * 3 if bias is None else bias.chunk(3)
    parts = zip((query, key, value), weight.chunk(3), biases, strict=True)
    return tuple(F.linear(x, w, b) for x, w, b in parts)


class KeyedAttention(KeyedLayer, nn.MultiheadAttention):
    """nn.MultiheadAttention with keyed dropout; it never calls torch's fused operator."""

    def forward(  # noqa: PLR0913  # torch's signature
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        key_padding_mask: Tensor | None = None,
        need_weights: bool = True,
        attn_mask: Tensor | None = None,
        average_attn_weights: bool = True,
        is_causal: bool = False,
    ) -> AttentionResult:
        transposed = self.batch_first and query.dim() == 3
        if transposed:
            query, key, value = swap_batch_and_length(query, key, value)
        drops = self.training and self.dropout > 0
        weight = self.q_proj_weight if self.in_proj_weight is None else self.in_proj_weight
        unfused = drops or (not need_weights and is_stacked(query, key, value, weight))
        run: Any = partial(multi_head, self.dropped) if unfused else F.multi_head_attention_forward
        separate_weights = {
            "use_separate_proj_weight": True,
            "q_proj_weight": self.q_proj_weight,
            "k_proj_weight": self.k_proj_weight,
            "v_proj_weight": self.v_proj_weight,
        }
        out, weights = run(
            query, key, value, self.embed_dim, self.num_heads, self.in_proj_weight, self.in_proj_bias,
            self.bias_k, self.bias_v, self.add_zero_attn, self.dropout, self.out_proj.weight,
            self.out_proj.bias, training=self.training, key_padding_mask=key_padding_mask,
            need_weights=need_weights, attn_mask=attn_mask, average_attn_weights=average_attn_weights,
            is_causal=is_causal, **(separate_weights if self.in_proj_weight is None else {}),
        )  # fmt: skip
        if drops:
            self.end_call()
        return (out.transpose(0, 1) if transposed else out), weights

    def dropped(self, weights: Tensor, p: float) -> Tensor:
        """Attention weights after dropout with probability `p`."""
        return drop(weights, p, self.words(weights.shape))


def swap_batch_and_length(query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The three tensors with their first two dimensions swapped; a tensor given twice stays one tensor."""
    q = query.transpose(0, 1)
    k = q if key is query else key.transpose(0, 1)
    return q, k, k if value is key else value.transpose(0, 1)


def is_stacked(*tensors: Tensor) -> bool:
    """Whether vmap batches one of the tensors, or torch.compile is tracing.

    torch's fused attention has no batching rule: vmap would call it once for each row.
    """
    return torch.compiler.is_compiling() or any(is_row(v) for v in tensors)


class Encoder(nn.TransformerEncoder):
    """nn.TransformerEncoder that does not read the mask's values while it is traced."""

    def forward(
        self,
        src: Tensor,
        mask: Tensor | None = None,
        src_key_padding_mask: Tensor | None = None,
        is_causal: bool | None = None,
    ) -> Tensor:
        causal = False if is_causal is None and is_traced() else is_causal
        return super().forward(src, mask, src_key_padding_mask, causal)


class Decoder(nn.TransformerDecoder):
    """nn.TransformerDecoder that does not read the mask's values while it is traced."""

    def forward(  # noqa: PLR0913  # torch's signature
        self,
        tgt: Tensor,
        memory: Tensor,
        tgt_mask: Tensor | None = None,
        memory_mask: Tensor | None = None,
        tgt_key_padding_mask: Tensor | None = None,
        memory_key_padding_mask: Tensor | None = None,
        tgt_is_causal: bool | None = None,
        memory_is_causal: bool = False,
    ) -> Tensor:
        causal = False if tgt_is_causal is None and is_traced() else tgt_is_causal
        return super().forward(
            tgt, memory, tgt_mask, memory_mask, tgt_key_padding_mask, memory_key_padding_mask, causal,
            memory_is_causal,
        )  # fmt: skip


def disable_fused_paths(layer: nn.Module) -> None:
    """Switch off torch's fused encoder layer and nested tensors, which `vmap` does not support."""
    if isinstance(layer, nn.TransformerEncoderLayer):
        layer.activation_relu_or_gelu = 0
    if isinstance(layer, nn.TransformerEncoder):
        layer.use_nested_tensor = False
        layer.enable_nested_tensor = False
