"""Whether an error means that a device ran out of memory."""

import torch


def ran_out_of_memory(error: BaseException | None) -> bool:
    """Whether torch.OutOfMemoryError is among the causes: a broken capture or compilation hides it there."""
    while error is not None and not isinstance(error, torch.OutOfMemoryError):
        error = error.__cause__ or error.__context__
    return error is not None
