"""Batch norm, convolution, pooling and dropout that are pure, ignore padding, and run fast in a stack.

Batch norm computes its statistics from the rows of weight 1 and assigns new running statistics instead of
writing into the old tensors. Dropout draws from a key, so that every engine drops the same elements. The
layers read sample weights and keys from buffers, which `Model.apply` sets for each call.
"""

from typing import cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from kedge.core.random import torch_words
from kedge.nn.gpu.convolution import stacked_convolution
from kedge.nn.gpu.first_layer import can_fuse_pooling, stacked_pooled_convolution
from kedge.nn.gpu.operators import uses_triton
from kedge.nn.gpu.pooling import stacked_pooling

SMALL_CONVOLUTION = 2**14  # values in the shifted copies of one sample


class MaskedBatchNorm(nn.Module):
    """Batch norm over the rows of weight 1; equal to torch's if all weights are 1."""

    running_mean: Tensor | None
    running_var: Tensor | None
    weight: Tensor | None
    bias: Tensor | None
    sample_weight: Tensor
    eps: float
    momentum: float
    frozen_statistics: bool

    def forward(self, x: Tensor) -> Tensor:
        axes = [0, *range(2, x.dim())]
        shape = [1, -1] + [1] * (x.dim() - 2)
        tracked = self.running_mean is not None and self.running_var is not None
        if tracked and (not self.training or self.frozen_statistics):
            mean, var = cast(Tensor, self.running_mean), cast(Tensor, self.running_var)
        else:
            weight = self.sample_weight.view([-1] + [1] * (x.dim() - 1))
            count = self.sample_weight.sum() * (x[0, 0].numel() if x.dim() > 2 else 1)
            mean = (weight * x).sum(axes) / count
            var = (weight * (x - mean.view(shape)) ** 2).sum(axes) / count
            if tracked and self.training:
                # torch stores the unbiased variance, which a single value does not have: it stays biased.
                unbiased = var.detach() * (count / (count - 1).clamp_min(1))
                old, new = 1 - self.momentum, self.momentum
                self.running_mean = old * cast(Tensor, self.running_mean) + new * mean.detach()
                self.running_var = old * cast(Tensor, self.running_var) + new * unbiased
        scale = torch.rsqrt(var + self.eps)
        if self.weight is not None:
            scale = scale * self.weight
        y = (x - mean.view(shape)) * scale.view(shape)
        return y if self.bias is None else y + self.bias.view(shape)


class StackedConv2d(nn.Conv2d):
    """An nn.Conv2d that is fast under vmap over clients with different weights.

    Under vmap torch computes a grouped convolution, which is slow. On a GPU kedge has a Triton program
    (gpu/convolution.py). In a compiled program on a CPU, a small convolution is a matrix product over shifted
    copies of the images (im2col), which vmap turns into one batched product. Copies of large images would
    need too much memory.
    """

    # The pooling layer that is fused with this one; in a tuple, so that it is not registered as a submodule.
    pooling: "tuple[StackedMaxPool2d, ...]" = ()

    def forward(self, x: Tensor) -> Tensor:
        stacked = x.dim() == 4 and uses_triton(x) and uses_triton(self.weight)
        if self.pooling:
            (pool,) = self.pooling
            settings = self.stride, self.padding, self.dilation
            if stacked and not isinstance(self.padding, str) and can_fuse_pooling(x, self.weight, *settings):
                return stacked_pooled_convolution(x, self.weight, self.bias, self.padding, pool.relu)
            return cast(Tensor, pool(self.convolve(x, stacked)))
        return self.convolve(x, stacked)

    def convolve(self, x: Tensor, stacked: bool) -> Tensor:
        """Compute the convolution without the fused pooling; `stacked`: by the Triton program."""
        if stacked and not isinstance(self.padding, str):
            return stacked_convolution(x, self.weight, self.bias, self.stride, self.padding, self.dilation)
        im2col = torch.compiler.is_compiling() and x.device.type == "cpu" and x.dim() == 4
        if not im2col or isinstance(self.padding, str):
            return F.conv2d(x, self.weight, self.bias, self.stride, self.padding, self.dilation)
        (kh, kw), (sh, sw), (dh, dw), (ph, pw) = self.kernel_size, self.stride, self.dilation, self.padding
        height = (x.shape[2] + 2 * ph - dh * (kh - 1) - 1) // sh + 1
        width = (x.shape[3] + 2 * pw - dw * (kw - 1) - 1) // sw + 1
        if x.shape[1] * kh * kw * height * width > SMALL_CONVOLUTION:
            return F.conv2d(x, self.weight, self.bias, self.stride, self.padding, self.dilation)
        padded = F.pad(x.permute(0, 2, 3, 1), (0, 0, pw, pw, ph, ph))
        shifted = [
            padded[
                :, i * dh : i * dh + (height - 1) * sh + 1 : sh, j * dw : j * dw + (width - 1) * sw + 1 : sw
            ]
            for i in range(kh)
            for j in range(kw)
        ]
        columns = torch.stack(shifted, 3).reshape(x.shape[0] * height * width, -1)
        kernel = self.weight.permute(2, 3, 1, 0).reshape(-1, self.out_channels)
        out = columns @ kernel if self.bias is None else torch.addmm(self.bias, columns, kernel)
        return out.view(x.shape[0], height, width, -1).permute(0, 3, 1, 2).contiguous()


class StackedMaxPool2d(nn.MaxPool2d):
    """2×2 max pooling, followed by ReLU if `relu`; for a stack on a GPU one Triton program computes both."""

    relu = False

    def forward(self, x: Tensor) -> Tensor:
        if x.dim() == 4 and x.shape[2] % 2 == x.shape[3] % 2 == 0 and uses_triton(x):
            return stacked_pooling(x, self.relu)
        return F.relu(super().forward(x)) if self.relu else super().forward(x)


class KeyedDropout(nn.Module):
    """Dropout whose mask is a function of a key and of the element's position; no generator is used."""

    key: Tensor  # [3]: two words of the step, the number of this layer
    p: float
    whole_channels: bool

    def forward(self, x: Tensor) -> Tensor:
        if not self.training or self.p == 0:
            return x
        elements = x[0].flatten(1)[:, 0] if self.whole_channels and x.dim() > 2 else x[0]
        position = torch.arange(elements.numel(), device=x.device).view(1, *elements.shape)
        sample = torch.arange(x.shape[0], device=x.device).view(-1, *([1] * elements.dim()))
        drawn = torch_words((self.key[0], self.key[1]), (position, sample, self.key[2], 0))[0]
        keep = drawn >= round(self.p * 2**32)
        keep = keep.view(*keep.shape, *([1] * (x.dim() - keep.dim())))
        return torch.where(keep, x / (1 - self.p), torch.zeros_like(x))
