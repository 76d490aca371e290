"""from_module: an nn.Module as a Model, that is, as a pure function of parameters and buffers.

Layers that keep state or do not ignore padding are replaced in a private copy of the module (replacement.py).
"""

import copy
from collections.abc import Callable

import torch
from torch import nn
from torch.func import functional_call

from kedge.core.model import Batch, Model, Output, Statistics
from kedge.core.random import Purpose, words
from kedge.core.tree import Leaves
from kedge.nn.replacement import private_copy, replace_layers, store_features
from kedge.nn.units import Granularity, check_trainable, trainable_units, units_of


def from_module(
    module: nn.Module,
    build: Callable[[], nn.Module] | None = None,
    statistics: Statistics = "shared",
    units: Granularity = "listed",
) -> Model:
    """The module as a Model; `Model.init(seed)` returns the weights of `module`, or of `build()` if given.

    Parameters with requires_grad=False are frozen: `init` and `units` leave them out, `apply` reads them.
    """
    check_trainable(module)
    replaced = private_copy(module)
    weight_names, key_names = replace_layers(replaced, frozen_statistics=statistics == "frozen")
    features_buffer = store_features(replaced)
    injected = {*weight_names, *key_names, *((features_buffer,) if features_buffer else ())}
    modules = {True: replaced.train(), False: copy.deepcopy(replaced).eval()}  # by `train`
    frozen: Leaves = {k: p for k, p in replaced.named_parameters() if not p.requires_grad}
    floating = {k for k, v in replaced.named_buffers() if v.is_floating_point() and k not in injected}
    constants = {k: v for k, v in replaced.named_buffers() if k not in floating and k not in injected}
    constants |= {k: p.detach() for k, p in frozen.items()}

    def init(seed: int) -> tuple[Leaves, Leaves]:
        initial = module if build is None else seeded(build, seed)
        buffers = dict(initial.named_buffers())
        return (
            {k: v.detach().clone() for k, v in initial.named_parameters() if k not in frozen},
            {k: buffers[k].detach().clone() for k in sorted(floating)},
        )

    def apply(params: Leaves, buffers: Leaves, batch: Batch, train: bool) -> tuple[Output, Leaves]:
        state = {**frozen, **params, **buffers}
        for name in weight_names:
            state[name] = batch.weight
        for number, name in enumerate(key_names):
            state[name] = torch.cat([batch.key, batch.key.new_full((1,), number)])
        if features_buffer:
            state[features_buffer] = batch.weight
        # functional_call copies attributes that forward() assigned (statistics, features) back into `state`.
        out = functional_call(modules[train], state, (batch.x,))
        new_buffers = {k: state[k].detach() for k in buffers}
        if isinstance(out, Output):
            return out, new_buffers
        features = state[features_buffer] if features_buffer else out
        return Output(features.flatten(1), out), new_buffers

    return Model(
        init=init,
        apply=apply,
        units=trainable_units(units_of(module, units), frozen),  # `replaced` has other classes of norm layers
        statistics=statistics,
        random=bool(key_names),
        classifier=classifier_of(replaced, features_buffer),
        constants=tuple(constants.items()),
        frozen=frozen,
        parameters=tuple(k for k, _ in replaced.named_parameters()),
        tied=tied_names(module),
    )


def tied_names(module: nn.Module) -> tuple[tuple[str, str], ...]:
    """Pairs (other name, first name) of the tensors that have several names in the state_dict."""
    first_name = {id(v): k for k, v in (*module.named_parameters(), *module.named_buffers())}
    parameters = module.named_parameters(remove_duplicate=False)
    buffers = module.named_buffers(remove_duplicate=False)
    return tuple((k, first_name[id(v)]) for k, v in (*parameters, *buffers) if first_name[id(v)] != k)


def classifier_of(module: nn.Module, features_buffer: str | None) -> tuple[str, ...]:
    """The names of weight and bias of the layer that stores its input in the buffer `features_buffer`."""
    if features_buffer is None:
        return ()
    path = features_buffer.removesuffix("features")
    return tuple(k for k, _ in module.named_parameters() if k in (f"{path}weight", f"{path}bias"))


def seeded(build: Callable[[], nn.Module], seed: int) -> nn.Module:
    """A new module whose initial weights depend only on the seed."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(int(words(seed, Purpose.INIT)[0]))
        return build()
