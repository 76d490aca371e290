"""torch.rand, torch.randn and similar functions, whose numbers are a function of a key."""

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import torch
from torch import Tensor

from kedge.core.errors import RequestError
from kedge.nn.keyed import normal, uniform


class Source(Protocol):
    """An object that returns new random words of its key at every call."""

    key: Tensor

    def words(self, shape: Sequence[int]) -> Tensor:
        """Random words of the next call."""


def refuse_generator(generator: Any, out: Any = None) -> None:
    """Raise a RequestError if `generator`, whose state no checkpoint saves, or `out` is given."""
    if generator is not None:
        raise RequestError(
            "a torch.Generator in a forward pass is not saved with a run. Leave `generator` out: kedge then "
            "draws the numbers from the run's seed."
        )
    if out is not None:
        raise RequestError(
            "random numbers with out=... are not supported in a forward pass: use the returned tensor."
        )


def new_tensor(
    draw: Callable[..., Tensor],
    source: Source,
    *size: Any,
    dtype: torch.dtype | None = None,
    device: Any = None,
    generator: Any = None,
    requires_grad: bool = False,
    **ignored: Any,
) -> Tensor:
    """torch.rand and torch.randn, with numbers from `draw`; `device` defaults to the batch's device."""
    refuse_generator(generator, ignored.get("out"))
    size = size or (ignored["size"],)
    shape = tuple(size[0]) if len(size) == 1 and isinstance(size[0], tuple | list) else size
    values = draw(source, shape, dtype or torch.get_default_dtype())
    return values if device is None else values.to(device)


def new_tensor_like(  # noqa: PLR0913  # torch's signature
    draw: Callable[..., Tensor],
    source: Source,
    input: Tensor,
    *,
    dtype: torch.dtype | None = None,
    device: Any = None,
    generator: Any = None,
    requires_grad: bool = False,
    **ignored: Any,
) -> Tensor:
    """torch.rand_like and torch.randn_like, with numbers from `draw`."""
    refuse_generator(generator, ignored.get("out"))
    values = draw(source, input.shape, dtype or input.dtype)
    return values.to(input.device if device is None else device)


def zeros_for_empty(source: Source, shape: Sequence[int], dtype: torch.dtype) -> Tensor:
    """torch.empty as zeros that vmap batches, because in-place random functions may write into them."""
    return torch.zeros(shape, dtype=dtype, device=source.key.device) + (source.key[0] * 0).to(dtype)


def uniforms(source: Source, shape: Sequence[int], dtype: torch.dtype) -> Tensor:
    """Uniform numbers in [0, 1)."""
    return uniform(source.words(shape), dtype)


def normals(source: Source, shape: Sequence[int], dtype: torch.dtype) -> Tensor:
    """Standard normal numbers."""
    return normal(source.words((*shape, 2)), dtype)


def gaussian(  # noqa: PLR0913  # torch's signature
    source: Source,
    mean: Any = 0.0,
    std: Any = 1.0,
    size: Sequence[int] | None = None,
    *,
    dtype: torch.dtype | None = None,
    device: Any = None,
    generator: Any = None,
    **ignored: Any,
) -> Tensor:
    """torch.normal."""
    refuse_generator(generator, ignored.get("out"))
    tensors = [v for v in (mean, std) if isinstance(v, Tensor)]
    shape = torch.broadcast_tensors(*tensors)[0].shape if tensors else tuple(size or ())  # type: ignore[no-untyped-call]  # torch leaves it untyped
    result_dtype = tensors[0].dtype if tensors else dtype or torch.get_default_dtype()
    values: Tensor = mean + std * normals(source, shape, result_dtype)
    return values if device is None else values.to(device)


def bernoulli(source: Source, input: Tensor, p: float | None = None, *, generator: Any = None) -> Tensor:
    """torch.bernoulli: 1 with probability `input`, or with probability `p` if it is given."""
    refuse_generator(generator)
    drawn = uniform(source.words(input.shape), input.dtype)
    return (drawn < (input if p is None else p)).to(input.dtype)


def bernoulli_(source: Source, x: Tensor, p: Any = 0.5, *, generator: Any = None) -> Tensor:
    """Tensor.bernoulli_."""
    refuse_generator(generator)
    return x.copy_((uniform(source.words(x.shape), x.dtype) < p).to(x.dtype))


def uniform_(source: Source, x: Tensor, *bounds: float, generator: Any = None, **named: float) -> Tensor:
    """Tensor.uniform_; torch names its bounds `from` and `to`."""
    refuse_generator(generator)
    low, high = {
        **{"from": 0.0, "to": 1.0},
        **dict(zip(("from", "to"), bounds, strict=False)),
        **named,
    }.values()
    return x.copy_(low + (high - low) * uniform(source.words(x.shape), x.dtype))


def normal_(
    source: Source, x: Tensor, mean: float = 0.0, std: float = 1.0, *, generator: Any = None
) -> Tensor:
    """Tensor.normal_."""
    refuse_generator(generator)
    return x.copy_(mean + std * normals(source, x.shape, x.dtype))


def exponential_(source: Source, x: Tensor, lambd: float = 1.0, *, generator: Any = None) -> Tensor:
    """Tensor.exponential_."""
    refuse_generator(generator)
    return x.copy_(-torch.log1p(-uniform(source.words(x.shape), x.dtype)) / lambd)


def randint(  # noqa: PLR0913  # torch's signature
    source: Source,
    low: int,
    high: Any = None,
    size: Sequence[int] | None = None,
    *,
    dtype: torch.dtype | None = None,
    device: Any = None,
    generator: Any = None,
    **ignored: Any,
) -> Tensor:
    """torch.randint, as randint(high, size) or randint(low, high, size); high - low is below 2^31."""
    refuse_generator(generator, ignored.get("out"))
    if size is None:
        low, high, size = 0, low, high
    elif high is None:
        low, high = 0, low
    assert size is not None
    values: Tensor = (low + ((source.words(tuple(size)) * (high - low)) >> 32)).to(dtype or torch.int64)
    return values if device is None else values.to(device)
