"""Trees and federations as NumPy arrays, which Ray's object store shares between processes without copies.

Ray pickles tensors, which copies them in every process. It maps arrays into memory, read-only.
"""

import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from kedge.core.tree import Tree
from kedge.data.dataset import Dataset
from kedge.data.federation import Federation
from kedge.engines.engine import Order
from kedge.engines.sums import Sums

Array = NDArray[Any]


def array_of(tensor: Tensor) -> Array:
    """The tensor as an array on the CPU."""
    array: Array = tensor.detach().cpu().numpy()
    return array


def shared_tensor(array: Array) -> Tensor:
    """A tensor that reads the memory of an array. It must not be written: the memory may be shared."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="The given NumPy array is not writable")
        return torch.from_numpy(array)


def to_arrays(tree: Tree) -> dict[str, Any]:
    """The tree with arrays in place of tensors."""
    return convert(tree, array_of)


def to_tensors(tree: Tree, device: torch.device | str = "cpu") -> dict[str, Any]:
    """The tree with tensors on `device` in place of arrays; they are copies."""

    def tensor_of(array: Array) -> Tensor:
        return torch.from_numpy(np.array(array)).to(device)

    return convert(tree, tensor_of)


def convert(tree: Tree, function: Callable[[Any], Any]) -> dict[str, Any]:
    """The tree with `function` applied to every value that is no dict."""
    return {k: convert(v, function) if isinstance(v, Mapping) else function(v) for k, v in tree.items()}


def order_with(order: Order, function: Callable[[Tree], Tree]) -> Order:
    """The order with `function` applied to each of its trees."""
    trees = order.shared, order.buffers, order.broadcast
    shared, buffers, broadcast = (dict(function(tree)) for tree in trees)
    return order._replace(shared=shared, buffers=buffers, broadcast=broadcast)


def sums_to_arrays(sums: Sums) -> dict[str, Any]:
    """The fields of `sums`, with arrays in place of tensors."""
    values = {each.name: getattr(sums, each.name) for each in fields(sums)}
    totals = {slot: (to_arrays(total), array_of(weight)) for slot, (total, weight) in sums.totals.items()}
    return {**values, "totals": totals}


def sums_to_tensors(values: dict[str, Any], device: torch.device | str) -> Sums:
    """The sums whose fields are `values`, with tensors on `device`."""
    totals = {
        slot: (to_tensors(total, device), torch.from_numpy(np.array(weight)).to(device))
        for slot, (total, weight) in values["totals"].items()
    }
    return Sums(**{**values, "totals": totals})


@dataclass(frozen=True)
class FederationArrays:
    """A federation without its common test set, with the samples as arrays."""

    x: Array
    y: Array
    options: dict[str, Any]  # the other arguments of Federation

    @staticmethod
    def of(federation: Federation) -> "FederationArrays":
        """The arrays of a federation."""
        options = {
            each.name: getattr(federation, each.name)
            for each in fields(federation)
            if each.init and each.name not in ("pool", "test")
        }
        return FederationArrays(array_of(federation.pool.x), array_of(federation.pool.y), options)

    def federation(self, device: torch.device | str) -> Federation:
        """The federation on `device`; on a CPU it reads the memory of the arrays."""
        pool = Dataset(shared_tensor(self.x), shared_tensor(self.y))
        return Federation(pool=pool, test=None, **self.options).to(device, self.options["dtype"])
