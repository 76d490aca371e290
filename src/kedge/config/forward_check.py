"""Check the model's forward pass on a few samples before training.

The forward pass must be a function of parameters, buffers, samples and key only: it may not use a generator
of its own or of the process, or change anything in place. The error for a module that does names the module.
PyTorch's random functions are replaced by functions of the key if possible (nn/random_functions.py).
"""

import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.autograd.graph import disable_saved_tensors_hooks
from torch.nn import functional as F
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook
from torch.overrides import TorchFunctionMode, resolve_name

from kedge.core.errors import RequestError
from kedge.core.model import Batch, Model
from kedge.core.tree import Leaves
from kedge.data.federation import Federation
from kedge.nn.naming import FORWARD_ERRORS, error_text, part_name
from kedge.nn.random_functions import KEYED_FUNCTIONS, with_keyed_functions
from kedge.nn.recurrent import Recurrent
from kedge.torch_private import tree_leaves

SAMPLES = 4
TRIES = 4  # forward passes with other random numbers, because a model's branches may depend on them
PADDING = 6
RECOMPUTED = (
    "it uses torch.utils.checkpoint, or other hooks on saved tensors. The backward pass would recompute "
    "activations with the module's first weights, not with the weights in training. Call the layers "
    "without it."
)
KEYED = "nn.Dropout, F.dropout, torch.rand, torch.randn, torch.bernoulli"
Run = Callable[[], list[Tensor]]


def with_checked_forward(model: Model, federation: Federation) -> Model:
    """The model, with keyed random functions if its forward calls any; raise if it cannot be trained."""
    params, buffers = model.init(0)
    dtype = next(iter(params.values())).dtype
    x, y = (v[:SAMPLES] for v in (federation.pool.x, federation.pool.y))
    inputs = federation.prepare(x).cpu().to(dtype)
    keys = [torch.tensor([number, 0]) for number in range(TRIES)]
    batch = Batch(inputs, y.cpu(), torch.ones(len(inputs), dtype=dtype), keys[0])

    def forward(model: Model, train: bool, key: Tensor = keys[0]) -> list[Tensor]:
        with torch.set_grad_enabled(train):  # without gradients checkpoint does nothing
            out, new_buffers = model.apply(params, buffers, batch._replace(key=key), train)
        return [out.logits, out.features, *new_buffers.values()]

    with preserve_generators(), disable_saved_tensors_hooks(RECOMPUTED):
        seen, calls = KeyedCalls(), list[tuple[nn.Module, Any]]()
        with seen, forward_hooks(lambda *call: calls.append(call), lambda *call: None):
            run_forward(lambda: forward(model, True))
            steps = sum(
                part.unrolled(inputs[0]) for part, inputs in calls if inputs and isinstance(part, Recurrent)
            )
            run_forward(lambda: forward(model, False))
            for _ in keys[1:]:
                run_forward(lambda: forward(model, True))
        check_unchanged(calls[0][0], model, {**params, **buffers})
        checked = replace(with_keyed_functions(model) if seen.keyed else model, unrolled=steps)
        for key in keys if checked.random else keys[:1]:
            check_reproducible(partial(forward, checked, True, key))
        check_reproducible(lambda: forward(checked, False))
        return replace(checked, mixes_samples=mixes_samples(checked, params, buffers, batch))


@torch.no_grad()
def mixes_samples(model: Model, params: Leaves, buffers: Leaves, batch: Batch) -> bool:
    """Whether samples of weight 0, with which a stack pads short batches, change the logits of the others."""
    x, y, weight, _ = batch
    longer_x, longer_y = (torch.cat([v, *[v[:1]] * PADDING]) for v in (x, y))
    longer_weight = torch.cat([weight, weight.new_zeros(PADDING)])
    # A batch of another size may be rounded differently, and batch norm over few values amplifies that.
    tolerance = 0.2 if model.half else 1e-2
    for number in range(TRIES if model.random else 1):  # a random order may, by chance, keep the samples
        key = torch.tensor([number, 0])
        alone = model.apply(params, buffers, batch._replace(key=key), True)[0].logits
        longer = Batch(longer_x, longer_y, longer_weight, key)
        padded = model.apply(params, buffers, longer, True)[0].logits[: len(x)]
        if bool((alone - padded).abs().max() > tolerance * alone.abs().max()):
            return True
    return False


class KeyedCalls(TorchFunctionMode):
    """Record whether a function is called that `KeyedFunctions` must replace: a draw, or fused attention."""

    keyed = False

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        before = torch.random.get_rng_state() if func in KEYED_FUNCTIONS else None
        out = func(*args, **(kwargs or {}))
        self.keyed = self.keyed or func is F.scaled_dot_product_attention
        if before is not None and not torch.equal(before, torch.random.get_rng_state()):
            self.keyed = True
        return out


class GeneratorCalls(TorchFunctionMode):
    """Record the name of the first torch function that advances the process's generator."""

    name: str | None = None

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        before = torch.random.get_rng_state()
        out = func(*args, **(kwargs or {}))
        if self.name is None and not torch.equal(before, torch.random.get_rng_state()):
            self.name = resolve_name(func) or getattr(func, "__name__", str(func))
        return out


def run_forward(run: Run) -> list[Tensor]:
    """Run a forward pass and return its result; an error names the module."""
    try:
        return run()
    except RequestError as error:
        raise RequestError(error_text(error)) from None
    except FORWARD_ERRORS as error:
        raise RequestError(f"the module cannot train: {error_text(error)}") from error


def check_reproducible(run: Run) -> None:
    """Raise if a forward pass advances a generator, or returns another result the second time."""
    before = generator_states()
    first = run_forward(run)
    after = generator_states()
    for generator, state in before.items():
        if after[generator] != state:
            raise RequestError(generator_message(run, generator))
    second = run_forward(run)
    if any(
        not torch.allclose(a, b, rtol=1e-3, atol=1e-5, equal_nan=True)
        for a, b in zip(first, second, strict=True)
    ):
        part = changing_module(run) or "the module"
        raise RequestError(
            f"{part}: its forward returns another result for the same input and the same key, so a run "
            f"could not be resumed and engines would disagree. For random numbers use {KEYED}: kedge "
            "draws them from the run's seed. Keep state between calls in a floating-point buffer, and "
            "assign a new tensor to it."
        )


def check_unchanged(root: nn.Module, model: Model, after: Leaves) -> None:
    """Raise if the forward passes have changed parameters or buffers in place."""
    params, buffers = model.init(0)
    for name, value in {**params, **buffers}.items():
        if not torch.equal(value.nan_to_num(), after[name].nan_to_num()):
            owner, _, leaf = name.partition(".parametrizations.")[0].rpartition(".")
            spectral = ".parametrizations." in name or leaf in ("weight_u", "weight_v")
            if spectral:
                advice = "spectral_norm does that: use nn.utils.parametrizations.weight_norm, or no norm."
            elif name in params:
                advice = "Embedding does that with max_norm: leave max_norm out."
            else:
                advice = f"Assign a new tensor instead: self.{leaf} = ..."
            if ".parametrizations." in name:
                owner = name.partition(".parametrizations.")[0]
            raise RequestError(
                f"{part_at(root, owner)}: its forward changes {name!r} in place, and with it the values "
                f"of clients that have not trained yet. {advice}"
            )


def part_at(root: nn.Module, path: str) -> str:
    """The name of the module at this path."""
    parts = dict(root.named_modules())
    return part_name(root, parts[path]) if path in parts else path or "the module"


def generator_states() -> dict[str, Any]:
    """The states of the process's global generators, by their owners' names in messages."""
    return {
        "torch's": torch.random.get_rng_state().numpy().tobytes(),
        "numpy's": str(np.random.get_state(legacy=False)),
        "Python's": random.getstate(),
    }


@contextmanager
def preserve_generators() -> Iterator[None]:
    """Restore the process's global generators on exit."""
    python, legacy = random.getstate(), np.random.get_state()
    try:
        with torch.random.fork_rng(devices=[]):
            yield
    finally:
        random.setstate(python)
        np.random.set_state(legacy)


def generator_message(run: Run, generator: str) -> str:
    """The error message for a forward pass that advances `generator`; it names the module and function."""
    states: list[Any] = []
    names: list[str] = []
    roots: list[nn.Module] = []

    def begin(part: nn.Module, inputs: Any) -> None:
        roots.append(part)
        states.append(generator_states()[generator])

    def end(part: nn.Module, inputs: Any, outputs: Any) -> None:
        if generator_states()[generator] != states.pop() and not names:
            names.append(part_name(roots[0], part))

    calls = GeneratorCalls()
    with forward_hooks(begin, end), calls:
        run_forward(run)
    by = f" ({calls.name})" if calls.name else ""
    part = names[0] if names else "the module"
    return (
        f"{part}: its forward draws from {generator} global generator{by}, so a run could not be resumed "
        f"exactly and clients could not train side by side. Use {KEYED}: kedge draws their numbers from the "
        "run's seed."
    )


def changing_module(run: Run) -> str | None:
    """The name of the innermost module that returns another output for the same input."""
    roots: list[nn.Module] = []
    calls: list[tuple[nn.Module, list[Tensor], list[Tensor]]] = []

    def begin(part: nn.Module, inputs: Any) -> None:
        roots.append(part)

    def end(part: nn.Module, inputs: Any, outputs: Any) -> None:
        calls.append((part, tensors(inputs), tensors(outputs)))

    with forward_hooks(begin, end):
        run_forward(run)
        count = len(calls)
        run_forward(run)
    for first, second in zip(calls[:count], calls[count:], strict=False):
        (part, inputs, outputs), (_, second_inputs, second_outputs) = first, second
        if same(inputs, second_inputs) and not same(outputs, second_outputs):
            return part_name(roots[0], part)
    return None


@contextmanager
def forward_hooks(begin: Callable[..., None], end: Callable[..., None]) -> Iterator[None]:
    """Call `begin` before and `end` after every module's forward."""
    handles = [register_module_forward_pre_hook(begin), register_module_forward_hook(end)]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def tensors(values: Any) -> list[Tensor]:
    """Copies of the tensors in nested inputs or outputs."""
    return [v.detach().clone() for v in tree_leaves(values) if isinstance(v, Tensor)]


def same(left: list[Tensor], right: list[Tensor]) -> bool:
    """Whether two lists of tensors are equal."""
    return len(left) == len(right) and all(
        a.shape == b.shape and torch.equal(a, b) for a, b in zip(left, right, strict=True)
    )
