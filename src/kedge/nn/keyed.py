"""Random numbers in a forward pass as a function of a key: uniform and normal numbers, dropout.

The random number of an element depends on the key, on the number of the layer or call that draws it, on the
element's first index (the sample) and on its position within the sample. It does not depend on the number of
samples, so padding does not change it. No generator is used.
"""

from collections.abc import Callable, Sequence
from math import prod

import torch
from torch import Tensor, nn

from kedge.core.random import IntOrTensor, torch_words

# Number of random bits in a uniform number: at most the bits of the dtype's significand.
BITS = {torch.float64: 32, torch.float32: 24, torch.float16: 11, torch.bfloat16: 8}
# Layer numbers are smaller. The second call of a layer in one forward pass draws as layer number + CALLS.
CALLS = 1 << 16

Drop = Callable[[Tensor, float], Tensor]  # (values, p) -> the values after dropout with probability p


def random_words(
    key: Tensor, shape: Sequence[int], number: IntOrTensor, draw: int, device: torch.device | None = None
) -> Tensor:
    """A tensor [*shape] of random 32-bit words in int64, for draw `draw` of the layer `number`."""
    device = device or key.device
    samples, per_sample = (shape[0], prod(shape[1:])) if len(shape) else (1, 1)
    block = torch.arange(-(-per_sample // 4), device=device).view(1, -1)  # Philox returns 4 words at a time
    sample = torch.arange(samples, device=device).view(-1, 1)
    drawn = torch_words((key[0], key[1]), (block, sample, number, draw))
    return torch.stack(drawn, -1).flatten(1)[:, :per_sample].reshape(tuple(shape))


def uniform(words: Tensor, dtype: torch.dtype) -> Tensor:
    """Uniform numbers in [0, 1) from random words, exact in `dtype`."""
    bits = BITS[dtype]
    return (words >> (32 - bits)).to(dtype) * 2.0**-bits


def normal(words: Tensor, dtype: torch.dtype) -> Tensor:
    """Standard normal numbers from random words [..., 2] (Box and Muller, 1958)."""
    compute_dtype = torch.float64 if dtype == torch.float64 else torch.float32
    bits = BITS[compute_dtype]
    open_interval = ((words >> (32 - bits)).to(compute_dtype) + 0.5) * 2.0**-bits  # > 0, so log is finite
    radius = torch.sqrt(-2 * torch.log(open_interval[..., 0]))
    return (radius * torch.cos(2 * torch.pi * open_interval[..., 1])).to(dtype)


def drop(x: Tensor, p: float, words: Tensor) -> Tensor:
    """Dropout of `x` with probability `p`; the random `words`, which broadcast to `x`, make the mask."""
    if p == 1:
        return x * 0
    return torch.where(words >= round(p * 2**32), x / (1 - p), torch.zeros_like(x))


class KeyedLayer:
    """A layer that draws from its buffer `key` ([3]: two words of the step, the layer's number).

    `end_call` increases the layer's number, so a second call in the same forward pass draws other numbers.
    """

    key: Tensor

    def words(self, shape: Sequence[int], draw: int = 0) -> Tensor:
        """Random words of this call; `draw` numbers the draws of one call."""
        return random_words(self.key, shape, self.key[2], 1 + draw)

    def end_call(self) -> None:
        """Increase the layer's number: its next call in this forward pass draws other numbers."""
        self.key = torch.cat([self.key[:2], self.key[2:] + CALLS])


class KeyedRReLU(KeyedLayer, nn.RReLU):
    """nn.RReLU with slopes that are a function of a key."""

    def forward(self, input: Tensor) -> Tensor:
        if not self.training:
            return super().forward(input)
        slope = self.lower + (self.upper - self.lower) * uniform(self.words(input.shape), input.dtype)
        self.end_call()
        return torch.where(input >= 0, input, slope * input)
