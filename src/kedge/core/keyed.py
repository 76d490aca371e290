"""Random numbers inside a model as a function of a key: masks, uniform and normal numbers, dropout.

An element's numbers depend on the key, on the number of the layer or call that draws, and on the element's
place: its first index (the sample) and its place behind that. They do not depend on how many samples
follow, so padding changes nothing, and no generator is used.
"""

from collections.abc import Callable, Sequence
from math import prod

import torch
from torch import Tensor, nn

from kedge.core.chance import IntOrTensor, torch_words

BITS = {torch.float64: 32, torch.float32: 24, torch.float16: 11, torch.bfloat16: 8}  # that a number holds
CALLS = (
    1 << 16
)  # a layer's number is below; its second call in one forward pass draws as layer number + CALLS

Drop = Callable[[Tensor, float], Tensor]  # the values and the share to drop -> the values with that dropped


def random_words(
    key: Tensor, shape: Sequence[int], number: IntOrTensor, draw: int, device: torch.device | None = None
) -> Tensor:
    """A random word of 32 bits in int64 for each element of `shape`; `number` and `draw` say who draws."""
    device = device or key.device
    rows, inside = (shape[0], prod(shape[1:])) if len(shape) else (1, 1)
    block = torch.arange(-(-inside // 4), device=device).view(1, -1)
    sample = torch.arange(rows, device=device).view(-1, 1)
    drawn = torch_words((key[0], key[1]), (block, sample, number, draw))
    return torch.stack(drawn, -1).flatten(1)[:, :inside].reshape(tuple(shape))


def uniform(words: Tensor, dtype: torch.dtype) -> Tensor:
    """Uniform numbers in [0, 1) from random words, exact in `dtype`."""
    bits = BITS[dtype]
    return (words >> (32 - bits)).to(dtype) * 2.0**-bits


def normal(words: Tensor, dtype: torch.dtype) -> Tensor:
    """Standard normal numbers from random words [..., 2] (Box and Muller, 1958)."""
    exact = torch.float64 if dtype == torch.float64 else torch.float32
    bits = BITS[exact]
    open_interval = ((words >> (32 - bits)).to(exact) + 0.5) * 2.0**-bits  # log(0) does not occur
    radius = torch.sqrt(-2 * torch.log(open_interval[..., 0]))
    return (radius * torch.cos(2 * torch.pi * open_interval[..., 1])).to(dtype)


def drop(x: Tensor, p: float, words: Tensor) -> Tensor:
    """Dropout of `x` by random words, which broadcast against it."""
    if p == 1:
        return x * 0
    return torch.where(words >= round(p * 2**32), x / (1 - p), torch.zeros_like(x))


class Drawing:
    """A layer whose buffer `key` ([3]: two words of the step, the layer's number) makes its random numbers.

    Each call moves the layer's number on, so that a layer called twice in one forward pass draws anew.
    """

    key: Tensor

    def words(self, shape: Sequence[int], draw: int = 0) -> Tensor:
        """Random words of this call; `draw` tells several draws of one call apart."""
        return random_words(self.key, shape, self.key[2], 1 + draw)

    def end_call(self) -> None:
        """Let the next call of the same forward pass draw other numbers."""
        self.key = torch.cat([self.key[:2], self.key[2:] + CALLS])


class KeyedRReLU(Drawing, nn.RReLU):
    """nn.RReLU whose slopes are a function of a key."""

    def forward(self, input: Tensor) -> Tensor:
        if not self.training:
            return super().forward(input)
        slope = self.lower + (self.upper - self.lower) * uniform(self.words(input.shape), input.dtype)
        self.end_call()
        return torch.where(input >= 0, input, slope * input)
