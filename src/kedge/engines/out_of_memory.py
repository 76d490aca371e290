"""Whether an error means that a device ran out of memory."""

import torch


def ran_out_of_memory(error: BaseException | None) -> bool:
    """Whether `error` or one of its causes is torch.OutOfMemoryError.

    If memory runs out during a capture or a compilation, torch raises another error, with this cause.
    """
    while error is not None and not isinstance(error, torch.OutOfMemoryError):
        error = error.__cause__ or error.__context__
    return error is not None
