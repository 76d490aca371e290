"""A device without values in the place of a GPU: which tensors are where, and when the host waits for it.

The captured engine runs on torch's meta device. On a CPU every tensor is on the host, so a test there cannot
see a tensor on the wrong device, or a value that the host reads. Here an operator that mixes devices raises
an error, and so does captured work that copies to or from the host.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from tests.engines import recorded
from tests.engines.recorded import on_the_cpu
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from kedge.engines.cuda import graphs, lanes
from kedge.measure import evaluation

COPIES = torch.ops.aten._to_copy.default, torch.ops.aten.copy_.default
READ = torch.ops.aten._local_scalar_dense.default


def devices(values: Any) -> set[str]:
    """The devices of the tensors; a number on the CPU may be used with tensors of any device."""
    return {v.device.type for v in tree_leaves(values) if isinstance(v, Tensor) and (v.is_meta or v.dim())}


class Watch(TorchDispatchMode):  # type: ignore[no-untyped-call]  # torch leaves it untyped
    """Gives values for reads of the device, counts them, and refuses what a GPU would refuse."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # torch leaves it untyped
        self.waits = 0  # values that the host read
        self.capturing = False

    def __torch_dispatch__(
        self, func: Any, types: Sequence[Any], args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        if func is READ and args[0].is_meta:
            self.wait()
            return True if args[0].dtype == torch.bool else 1
        if (
            func is COPIES[0]
            and devices(args) == {"meta"}
            and torch.device(kwargs.get("device", "meta")).type == "cpu"
        ):
            self.wait()
            return torch.zeros(args[0].shape, dtype=kwargs.get("dtype") or args[0].dtype)
        if func is COPIES[1] and devices(args[1]) == {"meta"} and not args[0].is_meta:
            return args[0].zero_()  # into pinned memory: the host does not wait
        if devices((args, kwargs)) == {"cpu", "meta"}:
            assert func in COPIES, f"{func} of tensors on the host and on the device"
            assert not self.capturing, "captured work copies from the host"
        return func(*args, **kwargs)

    def wait(self) -> None:
        """Count that the host waits for a value."""
        assert not self.capturing, "captured work copies to the host"
        self.waits += 1

    def record(self, work: Callable[[], Any], memory: Any, trial: Any = None) -> tuple[Any, Any]:
        """A stand-in for the capture of a graph, whose work is watched."""

        def watched() -> Any:
            self.capturing = True
            try:
                return work()
            finally:
                self.capturing = False

        return recorded.record(watched, memory)


@contextmanager
def on_the_meta_device() -> Iterator[Watch]:
    """Let the captured engine run on the meta device."""
    watch, tolist, empty = Watch(), Tensor.tolist, torch.empty

    def listed(self: Tensor) -> Any:
        if not self.is_meta:
            return tolist(self)
        watch.wait()
        return torch.ones(self.shape, dtype=self.dtype).tolist()

    def unpinned(*size: Any, pin_memory: bool = False, **options: Any) -> Tensor:
        return empty(*size, **options)

    with on_the_cpu(), pytest.MonkeyPatch.context() as patch, watch:
        for module in (graphs, lanes):
            patch.setattr(module, "capture", watch.record)
        patch.setattr(Tensor, "is_cuda", property(lambda self: self.is_meta), raising=False)
        patch.setattr(Tensor, "tolist", listed)
        patch.setattr(torch, "empty", unpinned)
        patch.setitem(evaluation.BATCH_LIMIT, "meta", evaluation.BATCH_LIMIT["cuda"])
        patch.setattr("kedge.engines.pack.joining.same_samples", lambda left, right: True)
        yield watch
